"""Changes that can't be carried are refused per table; other tables continue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inline_decoder import Cut, InlineDecoder
from stream_encoder import UNCHANGED, begin, commit, decode, decoder, delete, insert, relation, rows, table, update
from wal2lake import errors
from wal2lake.change import Refusal
from wal2lake.decode import Target
from wal2lake.position import ZERO
from wal2lake.schema import ReplicaIdentity, TableSchema

ONE = table({"id": "int", "name": "string"}, oid=1)
OTHER = table({"id": "int"}, oid=2, name="other")


def only(cut: Cut, oid: int = 1000) -> Refusal:
    (refusal,) = cut.refusals[oid]
    return refusal


@pytest.mark.parametrize(
    ("lake", "text", "what"),
    [
        ("decimal(10,2)", "NaN", "NaN"),
        ("decimal(10,2)", "Infinity", "infinity"),
        ("decimal(10,2)", "1.001", "a number with more digits"),
        ("decimal(10,2)", "123456789.00", "a number with more digits"),
        ("decimal(38,0)", "1" + "0" * 38, "a number with more digits"),
        ("decimal(38,0)", "340282366920938463463374607431768211457", "a number with more digits"),
        ("decimal(10,2)", "abc", "a text of another type"),
        ("date", "infinity", "infinity"),
        ("date", "-infinity", "infinity"),
        ("date", "0044-03-15 BC", "a date before year 1 or after 9999"),
        ("date", "10000-01-01", "a date before year 1 or after 9999"),
        ("timestamp", "0044-03-15 00:00:00 BC", "a date before year 1 or after 9999"),
        ("timestamp", "294276-12-31 23:59:59.999999", "a date before year 1 or after 9999"),
        ("timestamp", "infinity", "infinity"),
        ("timestamptz", "0001-12-31 23:59:59+00 BC", "a date before year 1 or after 9999"),
        ("timestamptz", "-infinity", "infinity"),
        ("string", b"\xff\xfe", "bytes that are not UTF-8"),
        ("list<int>", "{{1,2},{3,4}}", "an array of more than one dimension"),
        ("list<int>", "[0:1]={1,2}", "an array with a lower bound other than 1"),
        ("list<int>", "[0:0][2:3]={{1,2}}", "an array of more than one dimension"),
        ("list<date>", "{2024-01-01,infinity}", "infinity"),
        ("list<decimal(5,2)>", "{1.00,NaN}", "NaN"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_null(lake: str, text: str | bytes, what: str) -> None:
    schema = table({"id": "int", "v": lake})
    cut = decode(schema, insert(1000, ["1", None]), insert(1000, ["42", text]), insert(1000, ["43", text]))
    refusal = only(cut)
    assert (refusal.commit_lsn, refusal.seq, refusal.error) == (100, 2, "ValueRefused")
    assert refusal.fields == {
        "table": "public.t", "column": "v", "key": "id=42", "what": what, "lake_type": lake, "carrier": "string",
    }  # fmt: skip
    assert isinstance(errors.ValueRefused(**refusal.fields), errors.TableError)
    held = rows(cut.tables, "id", "v")
    assert [one for one, _ in held] == [1, 42, 43]
    assert held[1][1] is None or None in held[1][1]


def test_good_values_beside_a_bad_one_are_kept() -> None:
    schema = table({"id": "int", "d": "date", "n": "decimal(10,2)", "s": "string", "a": "list<int>"})
    cut = decode(
        schema, insert(1000, ["1", "2024-02-29", "1.5", "ok", "{1}"]),
        insert(1000, ["2", "infinity", "NaN", b"\xff", "{{1}}"]), insert(1000, ["3", None, "7.25", "é", "{}"]),
    )  # fmt: skip
    assert [(str(d), str(n), s, a) for d, n, s, a in rows(cut.tables, "d", "n", "s", "a")] == [
        ("2024-02-29", "1.50", "ok", [1]), ("None", "None", None, None), ("None", "7.25", "é", []),
    ]  # fmt: skip
    assert [refusal.fields["column"] for refusal in cut.refusals[1000]] == ["d", "n", "s", "a"]


def test_a_key_of_several_columns_names_the_row_and_no_key_says_so() -> None:
    pair = table({"a": "int", "b": "string", "d": "date"}, key=("b", "a"))
    assert only(decode(pair, insert(1000, ["1", "x", "infinity"]))).fields["key"] == "b=x, a=1"
    keyless = table({"d": "date"}, key=(), identity=ReplicaIdentity.FULL)
    assert only(decode(keyless, insert(1000, ["infinity"]))).fields["key"] == "no key"


def test_the_old_key_of_a_moved_row_is_refused_like_any_value() -> None:
    dated = table({"d": "date", "n": "int"}, key=("d",))
    cut = decode(dated, update(1000, ["2024-01-01", "1"], old_key=["infinity", None]))
    assert only(cut).fields["key"] == "d=infinity"
    assert rows(cut.tables, "_key_changed", "_old_d") == [(True, None)]


def test_an_update_whose_key_is_in_neither_row_needs_a_copy() -> None:
    wide = table({"id": "string", "n": "int"})
    refusal = only(decode(wide, insert(1000, ["k", "1"]), update(1000, [UNCHANGED, "2"])))
    assert (refusal.error, refusal.seq) == ("CopyNeeded", 2)


@pytest.mark.parametrize(
    ("schema", "change", "operation"),
    [
        (table({"id": "int"}, key=()), update(1000, ["1"]), "UPDATE"),
        (table({"id": "int"}, key=()), delete(1000, key=["1"]), "DELETE"),
        (table({"id": "int"}, identity=ReplicaIdentity.NOTHING), delete(1000, key=["1"]), "DELETE"),
        (table({"id": "int"}, key=(), identity=ReplicaIdentity.FULL), update(1000, ["1"]), "UPDATE"),
        (table({"id": "int"}, key=(), identity=ReplicaIdentity.FULL), delete(1000, key=["1"]), "DELETE"),
    ],
)
def test_a_change_that_does_not_identify_its_row_needs_a_copy(
    schema: TableSchema, change: bytes, operation: str
) -> None:
    refusal = only(decode(schema, insert(1000, ["1"]), change))
    assert (refusal.error, refusal.seq) == ("CopyNeeded", 2)
    assert refusal.fields == {"table": "public.t", "cause": f"{operation} on public.t does not identify its row"}


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (table({"id": "int"}, oid=1), "column name is missing in the stream"),
        (table({"id": "int", "name": "string", "x": "int"}, oid=1), "column x is new"),
        (table({"id": "int", "name": "long"}, oid=1), "column name has another type"),
        (
            table({"id": "int", "name": "string"}, key=("name",), oid=1),
            "key column id is not part of the replica identity",
        ),
    ],
)
def test_a_relation_that_is_not_the_table_is_refused_without_harm_to_others(sent: TableSchema, cause: str) -> None:
    made = decoder(ONE, OTHER)
    cells = [None] * len(sent.columns)
    made.feed([begin(5), relation(sent), insert(1, cells), relation(OTHER), insert(2, ["7"]), commit(5)])
    cut = made.cut()
    assert rows(cut.tables, "id") == [(7,)]
    refusal = only(cut, 1)
    assert (refusal.error, dict(refusal.fields)) == ("SchemaChanged", {"table": "public.t", "cause": cause})


def test_a_message_that_cannot_be_read_refuses_its_table_alone() -> None:
    made = decoder(ONE, OTHER)
    binary = insert(1, ["1", "a"]).replace(b"t\0\0\0\1a", b"b\0\0\0\1a")
    made.feed([begin(5), relation(ONE), binary, relation(OTHER), insert(2, ["7"]), commit(5)])
    cut = made.cut()
    assert rows(cut.tables, "id") == [(7,)]
    assert (only(cut, 1).error, only(cut, 1).fields["cause"]) == ("TableError", "SourceError")


@pytest.mark.parametrize(
    "broken",
    [
        insert(1, ["1", "a"])[:-1],
        insert(1, ["1", "a"]) + b"x",
        insert(1, ["1"]),
        update(1, ["1", "a"], old_key=["2", None]) + b"x",
        update(1, ["1", "a"], old_key=["2"]),
        delete(1, key=["1", None]) + b"x",
        insert(1, ["1", "a"]).replace(b"N\0\2", b"O\0\2"),
    ],
)
def test_a_message_that_is_too_short_or_too_long_refuses_its_table(broken: bytes) -> None:
    made = decoder(ONE)
    made.feed([begin(5), relation(ONE), broken, insert(1, ["2", "b"]), commit(5)])
    assert only(made.cut(), 1).error == "TableError"


def test_the_earliest_refusal_of_a_partitioned_table_is_kept_whichever_partition_it_is_in() -> None:
    root = table({"id": "int", "d": "date"}, oid=1, partitioned=True)
    made = InlineDecoder(lambda described: Target(root, 1, described.oid), ZERO)
    made.feed([
        begin(5), relation(root, 11), relation(root, 12), insert(12, ["1", "infinity"]), commit(5),
        begin(50), insert(11, ["2", "infinity"]), commit(50),
    ])  # fmt: skip
    refusal = only(made.cut(), 1)
    assert (refusal.commit_lsn, refusal.fields["key"]) == (5, "id=1")


def test_a_partition_without_identity_takes_inserts_alone() -> None:
    root = replace(table({"id": "int"}, oid=1, partitioned=True), key_index=9)
    leaf = table({"id": "int"}, key=(), identity=ReplicaIdentity.NOTHING, oid=11)
    made = InlineDecoder(lambda described: Target(root, 1, described.oid), ZERO)
    made.feed([begin(5), relation(leaf), insert(11, ["1"]), commit(5)])
    assert made.cut().refusals == {}
    made.feed([begin(50), update(11, ["2"]), commit(50)])
    assert only(made.cut(), 1).error == "CopyNeeded"


@pytest.mark.parametrize(
    ("index", "key", "identity", "refused"),
    [
        (9, ("id",), ReplicaIdentity.DEFAULT, False),
        (9, ("id", "v"), ReplicaIdentity.DEFAULT, False),
        (9, ("v",), ReplicaIdentity.DEFAULT, True),
        (9, (), ReplicaIdentity.FULL, False),
        (0, ("id",), ReplicaIdentity.DEFAULT, False),
        (0, ("id", "v"), ReplicaIdentity.DEFAULT, True),
        (0, (), ReplicaIdentity.FULL, True),
        (0, (), ReplicaIdentity.NOTHING, True),
    ],
)
def test_a_partition_that_had_another_key_than_its_root_has_is_copied(
    index: int, key: tuple[str, ...], identity: ReplicaIdentity, refused: bool
) -> None:
    """Without an index of the root's, only a message that flags the key itself tells that it was unique."""
    root = replace(table({"id": "int", "v": "int"}, oid=1, partitioned=True), key_index=index)
    leaf = table({"id": "int", "v": "int"}, key=key, identity=identity, oid=11)
    made = InlineDecoder(lambda described: Target(root, 1, described.oid), ZERO)
    made.feed([begin(5), relation(leaf), insert(11, ["1", "2"]), commit(5)])
    assert [refusal.error for some in made.cut().refusals.values() for refusal in some] == ["CopyNeeded"] * refused


def test_an_update_of_a_partition_by_a_key_that_the_root_has_not_is_copied() -> None:
    root = table({"id": "int", "v": "int"}, key=(), oid=1, partitioned=True)
    leaf = table({"id": "int", "v": "int"}, oid=11)
    made = InlineDecoder(lambda described: Target(root, 1, described.oid), ZERO)
    made.feed([begin(5), relation(leaf), insert(11, ["1", "2"]), update(11, ["1", "3"]), commit(5)])
    assert only(made.cut(), 1).error == "CopyNeeded"
