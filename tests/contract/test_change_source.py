"""The contract of ChangeSource, on a real server and on the scripted one."""

from __future__ import annotations

import pytest

from change_sources import (
    SLOT,
    FilledServer,
    Plugin,
    PolledServer,
    RealServer,
    ScriptedServer,
    Server,
    decoded,
    ends,
    everything,
    kinds,
    read_until,
)
from servers import Database, require_plugin
from simulation.statements import (
    PUBLICATION,
    add_column,
    create_partition,
    create_publication,
    create_table,
    delete,
    drop_column,
    drop_table,
    insert,
    publish,
    rename_column,
    truncate,
    update,
)
from waiting import wait_until
from wal2lake.errors import SlotInUse, SlotLost
from wal2lake.position import ZERO, Lsn
from wal2lake.schema import ReplicaIdentity
from wal2lake.source.ports import StreamRequest
from wal2lake.source.streaming import open_stream

LONG, LONGER = "x" * 3000, "y" * 4000


PLUGINS: tuple[Plugin, ...] = ("pgoutput", "test_decoding", "wal2json")
SOURCES = [*(f"{mode} {plugin}" for mode in ("wal", "poll") for plugin in PLUGINS), "filled pgoutput", "scripted"]


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Server:
    """A server with some tables, all published."""
    made: Server
    if request.param == "scripted":
        made = ScriptedServer()
    else:
        database: Database = request.getfixturevalue("database")
        mode, plugin = request.param.split()
        require_plugin(plugin)
        made = {"wal": RealServer, "poll": PolledServer, "filled": FilledServer}[mode](database, plugin)
    made.run(
        create_table("t", {"id": "int4", "v": "text"}, ["id"]),
        create_table("whole", {"a": "int4", "v": "text"}, identity=ReplicaIdentity.FULL),
        create_table("parted", {"k": "int4", "v": "text"}, ["k"], partition_by="k"),
        create_partition("low", "parted", 0, 10),
        create_partition("high", "parted", 10, 20),
        create_table("other", {"id": "int4"}, ["id"]),
        create_publication(PUBLICATION, "t", "whole", "parted"),
    )
    if isinstance(made, FilledServer):
        made.fill("whole")
    return made


@pytest.fixture
def start(source: Server) -> Lsn:
    return source.create_slot()


def skip_names_only(source: Server) -> None:
    if source.tells_names_only:
        pytest.skip("the plugin tells names only; what is done about it: tests/integration/test_output_plugins.py")


def changes(messages: list[bytes]) -> list[list[tuple[str, str]]]:
    """Table and kind of each change, by transaction."""
    return [[(table.removeprefix("public."), kind) for _, table, kind, _ in one] for one in decoded(messages)]


def values(messages: list[bytes]) -> list[dict[str, object]]:
    return [dict(row) for transaction in decoded(messages) for _, _, _, row in transaction]


def test_transactions_come_whole_and_in_the_order_of_their_commits(source: Server, start: Lsn) -> None:
    first, second = source.session(), source.session()
    first.execute(insert("t", id="1"))
    second.execute(insert("t", id="2"))
    first.execute(insert("t", id="3"))
    second.commit()
    first.commit()
    messages = everything(source, start)
    assert kinds(messages) == "BICBIIC"
    assert [row["id"] for row in values(messages)] == [2, 1, 3]


def test_what_was_rolled_back_and_what_is_not_published_never_comes(source: Server, start: Lsn) -> None:
    session = source.session()
    session.execute(insert("t", id="1"))
    session.rollback()
    source.run(insert("other", id="1"))
    source.run(insert("t", id="2"))
    assert [row["id"] for row in values(everything(source, start))] == [2]


def test_a_stream_resumes_exactly_at_its_token(source: Server, start: Lsn) -> None:
    for number in range(4):
        source.run(insert("t", id=str(number)))
    messages = everything(source, start)
    for place, end in enumerate(ends(messages), 1):
        assert [row["id"] for row in values(everything(source, end))] == [0, 1, 2, 3][place:]


def test_of_two_adjacent_commits_the_token_between_them_gives_the_second_alone(source: Server, start: Lsn) -> None:
    first, second = source.session(), source.session()
    first.execute(insert("t", id="1"))
    second.execute(insert("t", id="2"))
    first.commit()
    second.commit()
    between, _ = ends(everything(source, start))
    assert [row["id"] for row in values(everything(source, between))] == [2]


def test_what_is_acknowledged_is_what_a_new_stream_resumes_from(source: Server, start: Lsn) -> None:
    source.run(insert("t", id="1"))
    source.run(insert("t", id="2"))
    end = source.mark()
    with source.open(start) as stream:
        first, _ = ends(read_until(stream, end))
        stream.acknowledge(first)
        assert stream.acknowledged == first
        stream.acknowledge(start)
        assert stream.acknowledged == first
        wait_until(lambda: stream.read(0.05) is not None and source.confirmed() == first, 10, "confirmation")
        stream.finish()
    # The slot is further than the token that is asked for.
    assert [row["id"] for row in values(everything(source, start))] == [2]


def test_what_is_not_acknowledged_comes_again(source: Server, start: Lsn) -> None:
    source.run(insert("t", id="1"), update("t", {"id": "1"}, v="a"), delete("t", {"id": "1"}))
    assert decoded(everything(source, start)) == decoded(everything(source, start))


def test_truncate(source: Server, start: Lsn) -> None:
    source.run(insert("t", id="1"), insert("parted", k="1"))
    source.run(truncate("t"))
    source.run(truncate("low"))
    source.run(truncate("parted"))
    assert changes(everything(source, start)) == [
        [("t", "I"), ("low", "I")],
        [("t", "T")],
        [("low", "T")],
        [("high", "T"), ("low", "T")],
    ]


def test_an_update_that_changes_the_key_names_the_row_that_it_was(source: Server, start: Lsn) -> None:
    source.run(insert("t", id="1", v="a"))
    source.run(update("t", {"id": "1"}, id="2"))
    source.run(update("t", {"id": "2"}, v="b"))
    _, moved, stayed = values(everything(source, start))
    assert (moved["id"], moved["_old_id"], moved["_key_changed"]) == (2, 1, True)
    assert (stayed["id"], stayed["_old_id"], bool(stayed["_key_changed"])) == (2, None, False)


def test_unchanged_toast_is_distinguished_from_a_value(source: Server, start: Lsn) -> None:
    source.run(insert("t", id="1", v=LONG))
    source.run(update("t", {"id": "1"}, id="2"))
    source.run(update("t", {"id": "2"}, v=LONGER))
    written, kept, replaced = values(everything(source, start))
    assert (written["v"], written["_unchanged"]) == (LONG, None)
    assert (kept["v"], kept["_unchanged"]) == (None, (1,))
    assert (replaced["v"], replaced["_unchanged"]) == (LONGER, None)


def test_a_key_that_is_stored_out_of_line_is_in_every_update(source: Server) -> None:
    wide = "x" * 2500
    source.run(create_table("k", {"id": "text", "n": "int4"}, ["id"]), publish(PUBLICATION, "k"))
    start = source.create_slot()
    source.run(insert("k", id=wide, n="1"))
    source.run(update("k", {"id": wide}, n="2"))
    source.run(update("k", {"id": wide}, id="a"))
    _, stayed, moved = values(everything(source, start))
    assert (stayed["id"], stayed["n"], bool(stayed["_key_changed"])) == (wide, 2, False)
    assert (moved["id"], moved["_old_id"], moved["_key_changed"]) == ("a", wide, True)


def test_whole_rows_are_sent_where_the_identity_is_full(source: Server, start: Lsn) -> None:
    source.run(insert("whole", a="1", v="a"))
    source.run(insert("whole", a="1", v="a"))
    source.run(update("whole", {"a": "1"}, v="b"))
    source.run(delete("whole", {"a": "1"}))
    assert [len(one) for one in changes(everything(source, start))] == [1, 1, 4, 2]


def test_a_row_that_moves_to_another_partition_is_deleted_and_inserted(source: Server, start: Lsn) -> None:
    source.run(insert("parted", k="1", v=LONG))
    source.run(update("parted", {"k": "1"}, k="11"))
    messages = everything(source, start)
    assert changes(messages)[1] == [("low", "D"), ("high", "I")]
    assert values(messages)[2]["v"] == LONG


def test_rows_come_as_they_were_written_whatever_has_become_of_their_table(source: Server, start: Lsn) -> None:
    skip_names_only(source)
    source.run(insert("t", id="1", v="a"))
    source.run(add_column("t", "n", "int4", "7"), insert("t", id="2", n="3"))
    source.run(rename_column("t", "v", "w"), insert("t", id="3", w="c"))
    source.run(drop_column("t", "w"), insert("t", id="4"))
    source.run(drop_table("t"))
    found = [set(row) - {"_unchanged", "_old_id", "_key_changed"} for row in values(everything(source, start))]
    assert found == [{"id", "v"}, {"id", "v", "n"}, {"id", "w", "n"}, {"id", "n"}]


def test_a_table_counts_from_when_it_was_published(source: Server, start: Lsn) -> None:
    skip_names_only(source)
    source.run(insert("other", id="1"))
    source.run(publish(PUBLICATION, "other"))
    source.run(insert("other", id="2"))
    assert [row["id"] for row in values(everything(source, start))] == [2]


def test_nothing_is_lost_or_doubled_after_a_reconnect_in_the_middle_of_a_transaction(
    source: Server, start: Lsn
) -> None:
    # More than a stream takes at once.
    rows, wide = 400, "z" * 40_000
    source.run(insert("t", id="-1"))
    session = source.session()
    for number in range(rows):
        session.execute(insert("t", id=str(number), v=wide))
    session.commit()
    end = source.mark()
    with source.open(start, per_read=100) as stream:
        first: list[bytes] = []

        def second_begun() -> bool:
            first.extend(stream.read(0.1))
            return kinds(first).count("B") == 2

        wait_until(second_begun, 20, "the second transaction")
        done = ends(first)
        stream.acknowledge(done[0])
        assert len(done) == 1 and kinds(first)[-1] in "BI", "the test reads no part of a transaction"
    whole = first[: kinds(first).index("C") + 2]
    with source.open(done[0]) as stream:
        rest = read_until(stream, end)
    assert [row["id"] for row in values(whole)] == [-1]
    assert [row["id"] for row in values(rest)] == list(range(rows))


def test_positions_only_grow_and_reach_the_end_without_a_change(source: Server, start: Lsn) -> None:
    with source.open(start) as stream:
        assert (stream.acknowledged, stream.received, stream.keepalive_lsn) == (start, start, start)
        seen = [stream.received]
        for _ in range(3):
            end = source.mark()
            assert read_until(stream, end) == []
            assert stream.keepalive_lsn >= end
            seen.append(stream.received)
            # Some give nothing more before that.
            stream.acknowledge(stream.keepalive_lsn)
            assert stream.acknowledged == stream.keepalive_lsn
        assert seen == sorted(seen)


def test_what_comes_while_a_reader_stays_is_read_later(source: Server, start: Lsn) -> None:
    with source.open(start) as stream:
        source.run(insert("t", id="1"))
        stream.stay(0.01)
        assert [row["id"] for row in values(read_until(stream, source.mark()))] == [1]


def test_a_slot_that_is_not_there_is_lost(source: Server) -> None:
    with pytest.raises(SlotLost):
        source.open(ZERO)


def test_a_slot_has_one_reader(source: Server, start: Lsn) -> None:
    with source.open(start) as stream:
        if not stream.capabilities.exclusive:
            pytest.skip("readers through SQL have the slot in turns; the log of a group has one writer")
    request = StreamRequest(SLOT, (PUBLICATION,), start)
    with source.open(start), pytest.raises(SlotInUse):
        if isinstance(source, RealServer):
            open_stream(source.config, request, "g")
        else:
            source.open(start)
