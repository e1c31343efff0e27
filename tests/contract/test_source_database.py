"""The contract of SourceDatabase, on a real server and on the scripted one."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from change_sources import PolledServer, RealServer, ScriptedServer, Server, decoded, read_until
from servers import Database
from simulation.statements import (
    add_column,
    create_partition,
    create_table,
    delete,
    drop_table,
    insert,
    rename_table,
    update,
)
from waiting import wait_until
from wal2lake.config import Config
from wal2lake.errors import ConnectionFailed, CopyFailed, SourceBusy, SourceError, TableMissing, UpdatesRefused
from wal2lake.schema import ReplicaIdentity, TableId
from wal2lake.source.database import Source
from wal2lake.source.polling import open_polling
from wal2lake.source.ports import ChangeSource, SourceDatabase, StreamRequest
from wal2lake.source.publishing.publication import publication_name
from wal2lake.source.streaming.stream import ReplicationStream

GROUP = "g"


@dataclass(frozen=True)
class Place:
    server: Server
    source: SourceDatabase

    def oid(self, name: str) -> int:
        return self.server.oids()[name]

    def published(self) -> frozenset[int]:
        """The tables of the group's publication."""
        with closing(self.server.catalog()) as catalog:
            return catalog.published(publication_name(GROUP))


@pytest.fixture(params=["wal", "poll", "scripted"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A server with tables of every kind, and a group that means them."""
    server: Server
    dsn = "postgresql://unused"
    if request.param == "scripted":
        server = ScriptedServer()
    else:
        database: Database = request.getfixturevalue("database")
        server = (PolledServer if request.param == "poll" else RealServer)(database)
        dsn = database.dsn
    group = {
        "name": GROUP, "tables": ["public.*", "public.absent"], "exclude": ["public.other"],
        "capture": "poll" if request.param == "poll" else "wal",
    }  # fmt: skip
    config = Config(
        source={"dsn": dsn}, lake={"path": str(tmp_path)}, groups=[group],
        tables={"public.added": {"append_only": True}},
    )  # fmt: skip
    server.run(
        create_table("t", {"id": "int4", "v": "text"}, ["id"]),
        create_table("unidentified", {"a": "int4"}),
        create_table("added", {"a": "int4"}),
        create_table("other", {"id": "int4"}, ["id"]),
        create_table("parted", {"k": "int4", "v": "text"}, ["k"], partition_by="k"),
        create_partition("low", "parted", 0, 10),
    )
    if isinstance(server, ScriptedServer):
        return Place(server, server.model.source(config, config.groups[0]))
    made = Source(config, config.groups[0])
    request.addfinalizer(made.close)
    return Place(server, made)


def test_the_tables_of_a_group_are_found_and_described(place: Place) -> None:
    matched = place.source.match()
    assert [str(table.id) for table in matched.tables] == [
        "public.added", "public.parted", "public.t", "public.unidentified",
    ]  # fmt: skip
    assert [type(problem) for problem in matched.problems] == [TableMissing]
    with pytest.raises(TableMissing):
        place.source.discover()
    t, parted = place.source.describe([place.oid("t"), 1, place.oid("parted")])
    assert (t.id, t.names, t.key, t.identity) == (TableId("public", "t"), ("id", "v"), ("id",), ReplicaIdentity.DEFAULT)
    assert (parted.partitioned, parted.key, bool(parted.key_index)) == (True, ("k",), True)
    (heap,) = parted.heaps
    assert (heap.oid, [level.made for level in heap.levels]) == (place.oid("low"), [True])
    assert heap.bounds is not None and heap.bounds.columns == (("k", 1),)
    assert heap.bounds.text == "((k IS NOT NULL) AND (k >= 0) AND (k < 10))"
    assert dict(place.source.units()) == {place.oid("low"): ()}


def test_names_are_those_of_now(place: Place) -> None:
    oid = place.oid("t")
    place.server.run(rename_table("t", "u"), drop_table("other"))
    names = place.source.names()
    assert names[oid] == TableId("public", "u")
    assert TableId("public", "other") not in names.values()
    assert place.source.existing([oid, 1]) == {oid}
    assert place.source.relation(TableId("public", "u")).oid == oid
    with pytest.raises(SourceError):
        place.source.relation(TableId("public", "low"))
    assert place.source.oid_of(place.source.table_id(oid)) == oid
    assert place.source.oid_of(f"1/2/{oid}") is None


def test_publications_hold_what_can_be_published(place: Place) -> None:
    source = place.source
    schemas = source.describe([place.oid(name) for name in ("t", "parted", "unidentified", "added")])
    assert source.unpublished(schemas) == {schema.oid for schema in schemas}
    refused = source.publish(schemas)
    assert {oid: type(error) for oid, error in refused.items()} == {place.oid("unidentified"): UpdatesRefused}
    assert source.unpublished(schemas) == {place.oid("unidentified")}
    assert source.updates_refused(schemas) == {place.oid("unidentified")}
    assert source.appends()
    assert place.published() == {place.oid("t"), place.oid("parted")}
    assert source.publish(schemas[:1]) == {}
    assert place.published() == {place.oid("t")}
    source.drop_publication()
    assert not source.appends()
    assert place.published() == frozenset()


def test_a_publication_is_dropped_beside_a_transaction_that_drops_tables(place: Place) -> None:
    """Unless one of them is in the publication: then others have to be waited for."""
    source, session = place.source, place.server.session()
    source.publish(source.describe([place.oid("t")]))
    session.execute(drop_table("other"))
    source.drop_publication()
    session.commit()
    assert place.published() == frozenset()
    source.publish(source.describe([place.oid("t")]))
    session.execute(drop_table("t"))
    with pytest.raises(SourceBusy):
        source.drop_publication()
    session.rollback()
    assert place.published() == {place.oid("t")}
    source.drop_publication()
    assert place.published() == frozenset()


def test_what_is_not_in_the_snapshot_of_a_slot_comes_in_its_stream(place: Place) -> None:
    source, server = place.source, place.server
    source.publish(source.describe([place.oid("t")]))
    server.run(insert("t", id="1", v="a"), insert("t", id="2", v="b"))
    assert source.slot() is None and not source.standing().active
    with source.create_slot() as held:
        server.run(update("t", {"id": "1"}, v="c"), delete("t", {"id": "2"}), insert("t", id="3", v="d"))
        rows = _rows_at(server, held.snapshot.name, place.oid("t"))
        assert held.alive
    assert rows == Counter([("1", "a"), ("2", "b")])
    info = source.slot()
    assert info is not None and info.confirmed_flush_lsn is not None and info.lost is None
    if held.snapshot.visibility is None:
        assert info.confirmed_flush_lsn == held.snapshot.lsn
    assert source.standing().acknowledged_lsn == info.confirmed_flush_lsn <= held.snapshot.lsn
    request = StreamRequest(source.slot_name, (publication_name(GROUP),), held.snapshot.lsn)
    end = source.mark()
    with _opened(server, request) as stream:
        ((first, second, third),) = decoded(read_until(stream, end))
    assert [first[2], second[2], third[2]] == ["U", "D", "I"]
    _wait_for_release(source)
    source.drop_slot()
    assert source.slot() is None


def test_a_table_is_unchanged_while_it_is_copied_or_is_refused(place: Place) -> None:
    source, server = place.source, place.server
    (schema,) = source.describe([place.oid("t")])
    with source.open_snapshot() as held:
        with source.held_still(schema, held.snapshot.name) as copied:
            assert copied.schema == schema
            assert (len(copied.heaps), len(copied.copy_columns)) == (1, 2)
        server.run(add_column("t", "n", "int4"))
        with pytest.raises(CopyFailed), source.described_at(schema, held.snapshot.name):
            pass
    with source.open_snapshot() as held, source.described_at(schema, held.snapshot.name) as described:
        assert described.names == ("id", "v", "n")
    with source.open_snapshot() as held:
        server.run(drop_table("t"))
        with pytest.raises(CopyFailed), source.described_at(schema, held.snapshot.name):
            pass


def test_a_moment_has_passed_when_all_that_ran_then_has_ended(place: Place) -> None:
    source = place.source
    session = place.server.session()
    session.execute(insert("t", id="1"))
    moment = source.settled()
    assert not source.passed(moment)
    later = place.server.session()
    later.execute(insert("t", id="2"))
    before = source.written()
    session.commit()
    assert source.passed(moment)
    later.commit()
    assert source.written() > before
    assert source.mark() > before


def test_a_source_that_was_interrupted_is_asked_nothing_more(place: Place) -> None:
    place.source.names()
    place.source.interrupt()
    with pytest.raises(ConnectionFailed):
        place.source.names()


def _rows_at(server: Server, snapshot: str, oid: int) -> Counter[tuple[str | None, ...]]:
    if isinstance(server, ScriptedServer):
        return server.model.snapshot_contents(snapshot, oid)
    assert isinstance(server, RealServer)
    with server.database.connect(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        return Counter(connection.execute("SELECT id::text, v FROM t").fetchall())


def _opened(server: Server, request: StreamRequest) -> ChangeSource:
    if isinstance(server, ScriptedServer):
        return server.model.stream(request)
    assert isinstance(server, RealServer)
    if isinstance(server, PolledServer):
        return open_polling(server.config, request, GROUP)
    return ReplicationStream.of(server.config, request, GROUP)


def _wait_for_release(source: SourceDatabase) -> None:
    def released() -> bool:
        info = source.slot()
        return info is not None and info.active_pid is None

    wait_until(released, 20, "the slot to be free")
