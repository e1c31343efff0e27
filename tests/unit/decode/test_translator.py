"""Which facts of the catalog count for a change that was written before they were read."""

from __future__ import annotations

import struct
from dataclasses import replace

from inline_decoder import InlineDecoder
from wal2lake.capture.streamed_transactions import plain
from wal2lake.decode import (
    ColumnFact,
    Messages,
    Reading,
    Relation,
    RelationFacts,
    SlotMark,
    TableName,
    Target,
    Translator,
)
from wal2lake.position import ZERO
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import lake_type
from wal2lake.visibility import PgSnapshot

T = TableName("public", "t")
OLD, MARK = 500, SlotMark(600, 1000)
"""a transaction that had ended when the slot's position was 1000"""


def facts(oid: int = 1, table: TableName = T, **changes: object) -> RelationFacts:
    columns = (
        ColumnFact(1, "id", 23, "integer", -1, "", dropped=False, written=OLD),
        ColumnFact(2, "v", 25, "text", -1, "", dropped=False, written=OLD),
    )
    made = RelationFacts(
        oid, table, "r", ReplicaIdentity.DEFAULT, columns, (1,), OLD, frozenset("IUDT"), (OLD,), OLD, OLD, OLD
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def message(lsn: int, text: str) -> bytes:
    return struct.pack(">cqqq", b"w", lsn, lsn, 0) + text.encode()


def transaction(xid: int, *changes: str, first: int = 2000, end: int = 3000) -> list[bytes]:
    inner = [message(first + 1 + number, f"table public.{change}") for number, change in enumerate(changes)]
    return [message(first, f"BEGIN {xid}"), *inner, message(end, f"COMMIT {xid} (at 2026-01-01 00:00:00+00)")]


def reading(*tables: RelationFacts, snapshot: str = "900:900:", all: bool = False) -> Reading:
    found = {one.table: one for one in tables}
    return Reading(PgSnapshot.parse(snapshot), None, found, frozenset({T, *found}), tables if all else None)


def translator(blocks: bool = False, hold: int = 1 << 20) -> Translator:
    return Translator("test_decoding", 180000, [MARK], blocks=blocks, hold_bytes=hold)


def kinds(messages: Messages) -> str:
    return "".join(chr(one[25]) for one in messages)


def told(made: Translator, some: list[bytes], *readings: Reading) -> str:
    made.feed(Messages.of(some))
    found = kinds(made.translate())
    for each in readings:
        made.read(each)
        found += kinds(made.translate())
    return found


INSERT = "t: INSERT: id[integer]:1 v[text]:'x'"
UPDATE = "t: UPDATE: id[integer]:1 v[text]:'y'"
DELETE = "t: DELETE: id[integer]:1"


def test_what_is_older_than_the_slots_position_counts() -> None:
    assert told(translator(), transaction(700, INSERT, UPDATE, DELETE), reading(facts())) == "BRIUDC"


def test_a_transaction_that_others_do_not_see_yet_waits() -> None:
    made = translator()
    assert told(made, transaction(700, INSERT), reading(facts(), snapshot="700:900:700")) == ""
    assert made.asked == {T} and not made.settled
    assert told(made, [], reading(facts())) == "BRIC"


def test_an_alteration_that_the_stream_has_passed_counts() -> None:
    altered = facts(written=700, columns=(*facts().columns, ColumnFact(3, "n", 23, "integer", -1, "", False, 700)))
    made = translator()
    told(made, transaction(700))
    later = transaction(701, "t: UPDATE: id[integer]:1 v[text]:'y' n[integer]:1", first=3100, end=3200)
    assert told(made, later, reading(altered)) == "BRUC"


def test_a_row_from_before_a_column_was_added_is_told_by_the_columns_that_were_there() -> None:
    altered = facts(columns=(*facts().columns, ColumnFact(3, "n", 23, "integer", -1, "", False, 800)))
    assert told(translator(), transaction(700, INSERT), reading(altered)) == "BRIC"


def test_a_row_with_a_column_that_may_have_been_another_one_is_refused() -> None:
    columns = (facts().columns[0], replace(facts().columns[1], written=800))
    assert told(translator(), transaction(700, INSERT), reading(facts(columns=columns))) == "BRXC"


def test_what_the_transaction_itself_has_altered_is_refused() -> None:
    columns = (*facts().columns, ColumnFact(3, "n", 23, "integer", -1, "", False, 700))
    change = "t: INSERT: id[integer]:1 v[text]:'x' n[integer]:1"
    assert told(translator(), transaction(700, change), reading(facts(columns=columns))) == "BRXC"


def test_an_alteration_in_a_subtransaction_counts_when_a_reading_has_seen_it_before() -> None:
    """Its number is in no message of the stream."""
    altered = facts(written=701, key_written=701)
    assert told(translator(), transaction(705, INSERT), reading(altered)) == "BRXC"
    made = translator()
    made.read(reading(altered, snapshot="702:702:"))
    assert told(made, transaction(705, INSERT), reading(altered)) == "BRIC"


def test_an_update_without_an_old_row_is_refused_if_the_identity_may_have_been_another() -> None:
    truncated = facts(written=800)
    assert told(translator(), transaction(700, INSERT, UPDATE, DELETE), reading(truncated)) == "BRIXDC"


def test_a_key_that_may_be_newer_than_a_row_is_not_its_key() -> None:
    assert told(translator(), transaction(700, INSERT), reading(facts(key_written=800))) == "BRXC"


def test_a_name_that_may_have_been_anothers_is_refused_for_all_that_may_have_had_it() -> None:
    other = facts(2, TableName("public", "u"), named=801)
    sure = facts(3, TableName("public", "w"))
    made = translator()
    assert told(made, transaction(700, INSERT), reading(facts(named=800), other, sure)) == ""
    assert made.asks_all
    found = told(made, [], reading(facts(named=800), other, sure, all=True))
    assert found == "BRXRXC"


def test_a_name_that_nothing_has_any_more_concerns_only_what_was_renamed() -> None:
    made = translator()
    told(made, transaction(700, INSERT), reading())
    assert told(made, [], reading(facts(2, TableName("public", "w")), all=True)) == ""
    assert made.passed == 3000


def test_a_schemas_name_counts_only_for_transactions_that_began_after_it() -> None:
    """Who writes a table holds no lock on its schema."""
    swapped = facts(schema_named=650)
    made = translator()
    told(made, transaction(650, first=1100, end=1200))
    spanning = transaction(640, INSERT, first=1050, end=1300)
    told(made, spanning, reading(swapped))
    assert told(made, [], reading(swapped, all=True)) == "BRXC"
    assert told(made, transaction(660, INSERT, first=1400, end=1500), reading(swapped)) == "BIC"


def test_what_no_publication_has_is_left_out_and_an_empty_transaction_too() -> None:
    made = translator()
    foreign = facts(published=frozenset(), memberships=())
    assert told(made, transaction(700, INSERT), reading(foreign)) == ""
    assert told(made, transaction(701, first=3100, end=3200)) == ""
    assert made.passed == 3200 and made.settled


def test_deletes_of_an_append_only_table_are_left_out_once_it_is_certainly_one() -> None:
    appended = facts(published=frozenset("IT"))
    assert told(translator(), transaction(700, INSERT, DELETE), reading(appended)) == "BRIC"
    assert told(translator(), transaction(700, DELETE), reading(replace(appended, memberships=(800,)))) == "BRDC"


def test_a_long_transaction_whose_commit_is_not_told_goes_out_in_a_block() -> None:
    made = translator(blocks=True, hold=200)
    changes = [f"t: INSERT: id[integer]:{number} v[text]:'x'" for number in range(9)]
    made.feed(Messages.of(transaction(700, *changes)))
    made.translate()
    made.read(reading(facts()))
    found = made.translate()
    assert kinds(found) == "SR" + "I" * 9 + "Ec"
    assert struct.unpack_from(">Iqqq", found[len(found) - 1], 26)[0] == 700
    inside = plain(found[1:11])
    rows = InlineDecoder(lambda relation: Target(_schema(relation), 1), ZERO)
    begin, end = message(0, ""), message(0, "")
    begin += struct.pack(">cqqI", b"B", 2999, 0, 700)
    end += struct.pack(">cBqqq", b"C", 0, 2999, 3000, 0)
    rows.feed([begin, *inside, end])
    (table,) = rows.cut().tables
    assert table.batch.column("id").to_pylist() == list(range(9))


def test_a_transaction_with_a_commit_told_at_its_end_has_a_position_inside_its_commit_record() -> None:
    made = translator()
    made.feed(Messages.of(transaction(700, INSERT)))
    made.translate()
    made.read(reading(facts()))
    begin, *_, end = made.translate()
    assert struct.unpack_from(">q", begin, 26) == (2999,)
    assert struct.unpack_from(">qq", end, 27) == (2999, 3000)


def _schema(relation: Relation) -> TableSchema:
    columns = tuple(
        Column(c.name, c.type_oid, c.typmod, c.name, lake_type(c.type_oid, c.typmod, 0, {})) for c in relation.columns
    )
    return TableSchema(relation.oid, TableId(*T), columns, ("id",), relation.identity)


def test_the_old_row_has_a_key_that_the_new_row_leaves_out() -> None:
    change = "t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:unchanged-toast-datum v[text]:'y'"
    made = translator()
    made.feed(Messages.of(transaction(700, change)))
    made.translate()
    made.read(reading(facts()))
    (update,) = (one for one in made.translate() if one[25:26] == b"U")
    # The old row is (1, null), the new one (unchanged, 'y').
    assert update[30:] == b"K\x00\x02t\x00\x00\x00\x011nN\x00\x02ut\x00\x00\x00\x01y"
