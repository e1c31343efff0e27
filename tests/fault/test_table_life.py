"""Tables are added, removed, paused, resumed, renamed, dropped and moved during a run; others continue."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import PATIENCE, Mirrored, logged_errors

from oracle import assert_equal_tables, table_directory
from servers import Database
from waiting import wait_until
from wal2lake.demo.compare import open_catalog
from wal2lake.errors import CommandRefused
from wal2lake.lake import Applied, Batch, Lake
from wal2lake.mirror import Mirror, RunOptions
from wal2lake.reconcile.desired_state import DesiredState, DesiredStateReader
from wal2lake.reconcile.table_runtime import TableRuntime
from wal2lake.retry import Backoff
from wal2lake.state import GroupSpec, HistoryEntry
from wal2lake.state.postgres import PostgresStateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = {"name": "default", "tables": ["public.a", "public.b"], "flush_interval": 0.1}


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    for name in "abcd":
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text);"
            f"INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 50) i"
        )
    return Mirrored(database, tmp_path / "lake", spark, groups=[GROUP])


def _mirror(mirrored: Mirrored) -> Mirror:
    return Mirror(mirrored.config)


def _state(mirrored: Mirrored, name: str) -> str | None:
    table = mirrored.table(name)
    return table.state if table is not None else None


def _becomes(mirrored: Mirrored, name: str, state: str | None) -> None:
    wait_until(
        lambda: _state(mirrored, name) == state, PATIENCE,
        lambda: f"{name} is {mirrored.table(name)}, not {state}",
    )  # fmt: skip


def _write(mirrored: Mirrored, *names: str, first: int) -> None:
    for name in names:
        mirrored.database.execute(
            f"INSERT INTO {name} VALUES ({first}, 'new'); UPDATE {name} SET v = v || '+' WHERE id % 7 = {first} % 7;"
            f"DELETE FROM {name} WHERE id = {first} % 50"
        )


def _lake_tables(lake: Path) -> set[str]:
    with open_catalog(lake) as catalog:
        return {".".join(name) for space in catalog.list_namespaces() for name in catalog.list_tables(space)}


def _versions(lake: Path, *name: str) -> int:
    with open_catalog(lake) as catalog:
        return len(catalog.load_table(name).history())


def _handovers(entries: tuple[HistoryEntry, ...]) -> list[str]:
    return [entry.after for entry in entries if entry.after is not None]


def test_tables_are_added_paused_resumed_and_removed_while_a_run_is_on(mirrored: Mirrored) -> None:
    mirror = _mirror(mirrored)
    with mirrored.running():
        mirrored.is_streaming("a", "b")
        assert mirror.add(["public.c"]) == ("public.c",)
        mirrored.is_streaming("c")
        _write(mirrored, "a", "b", "c", first=101)
        mirrored.follows("a", "b", "c")

        mirror.pause(["public.b"])
        _becomes(mirrored, "b", "PAUSED")
        before = _versions(mirrored.lake, "public", "b")
        _write(mirrored, "a", "b", "c", first=102)
        mirrored.follows("a", "c")
        mirrored.slot_passes(mirrored.now())
        assert _versions(mirrored.lake, "public", "b") == before
        mirror.resume(["public.b"])
        mirrored.follows("a", "b", "c")

        mirror.add(["d"], target="other.named")
        mirrored.is_streaming("d")
        _write(mirrored, "d", first=103)
        wait_until(
            lambda: mirrored.table("d") and mirrored.database.value("SELECT count(*) FROM d") == _count(mirrored, "other.named"),
            PATIENCE, "the changes of d arrive under its other name",
        )  # fmt: skip
        mirror.remove(["public.c"], drop_lake=False)
        mirror.remove(["public.d"], drop_lake=True)
        _becomes(mirrored, "c", None)
        _becomes(mirrored, "d", None)
        wait_until(lambda: "other.named" not in _lake_tables(mirrored.lake), PATIENCE, "the lake table is dropped")
        assert _lake_tables(mirrored.lake) == {"public.a", "public.b", "public.c"}
        published = (
            "SELECT array_agg(tablename::text ORDER BY 1) FROM pg_publication_tables WHERE pubname = 'wal2lake_default'"
        )
        assert mirrored.database.value(published) == ["a", "b"]
    entries = mirror.history("public.b")
    assert _handovers(entries)[-4:] == ["STREAMING", "PAUSED", "CATCHUP", "STREAMING"]
    assert [entry.detail for entry in entries if entry.after is None] == ["tables pause", "tables resume"]
    assert all(entry.who for entry in entries)


def _count(mirrored: Mirrored, name: str) -> int:
    with open_catalog(mirrored.lake) as catalog:
        return int(catalog.load_table(tuple(name.split("."))).scan().to_arrow().num_rows)


def test_what_is_asked_for_without_a_run_is_done_by_the_next(mirrored: Mirrored) -> None:
    mirrored.catches_up("a", "b")
    mirror = _mirror(mirrored)
    mirror.add(["public.c"])
    mirror.pause(["public.b"])
    _write(mirrored, "a", "b", "c", first=101)
    result = mirrored.once()
    assert result.ok and {table.name: table.state for table in result.reached}["public.b"] == "PAUSED"
    mirrored.equal("a", "c")
    mirror.resume(["public.b"])
    mirror.remove(["public.c"], drop_lake=True)
    mirrored.catches_up("a", "b")
    assert _lake_tables(mirrored.lake) == {"public.a", "public.b"}
    with pytest.raises(CommandRefused, match="mirrors it already"):
        mirror.add(["public.a"])
    with pytest.raises(CommandRefused, match="it is another table's lake table"):
        mirror.add(["public.c"], target="public.a")


def test_a_table_added_without_a_copy_begins_empty_at_the_current_position(mirrored: Mirrored) -> None:
    mirrored.catches_up("a", "b")
    _mirror(mirrored).add(["public.c"], copy=False)
    assert mirrored.once().ok
    assert _count(mirrored, "public.c") == 0
    mirrored.database.execute("INSERT INTO c VALUES (1000, 'later')")
    assert mirrored.once().ok
    assert _count(mirrored, "public.c") == 1
    mirrored.resync("c")
    mirrored.catches_up("a", "b", "c")


@pytest.mark.slow
def test_a_table_that_began_without_a_copy_gets_its_rows_when_a_move_needs_one(mirrored: Mirrored) -> None:
    mirrored.catches_up("a", "b")
    mirror = _mirror(mirrored)
    mirror.add(["public.c"], copy=False)
    assert mirrored.once().ok
    mirrored.database.execute("INSERT INTO c VALUES (1000, 'later')")
    assert mirrored.once().ok
    mirrored.database.execute("INSERT INTO c VALUES (1001, 'missed')")
    mirrored.resync("c")
    mirror.create_group(GroupSpec("second", True, flush_interval=0.1))
    mirror.move(["public.c"], "second")
    with mirrored.running():
        wait_until(lambda: _group_of(mirrored, "c") == "second", PATIENCE, lambda: mirrored.table("c"))
        mirrored.follows("a", "b", "c")


@pytest.mark.slow
def test_a_renamed_table_goes_on_into_the_same_lake_table(mirrored: Mirrored) -> None:
    mirrored.configure(groups=[{"name": "default", "flush_interval": 0.1, "on_rename": "keep"}])
    mirrored.catches_up("a", "b")
    mirrored.database.execute("ALTER TABLE a RENAME TO renamed")
    _write(mirrored, "renamed", "b", first=101)
    assert mirrored.once().ok
    assert_equal_tables(mirrored.database, mirrored.lake, ["b"])
    assert "public.renamed" not in _lake_tables(mirrored.lake)
    assert _count(mirrored, "public.a") == mirrored.database.value("SELECT count(*) FROM renamed")
    mirrored.configure(groups=[{"name": "default", "flush_interval": 0.1, "on_rename": "rename"}])
    _write(mirrored, "renamed", first=102)
    mirrored.catches_up("renamed", "b")
    assert "public.a" not in _lake_tables(mirrored.lake)
    _write(mirrored, "renamed", first=103)
    mirrored.catches_up("renamed")


def test_a_dropped_table_is_marked_and_one_of_its_name_takes_its_place(mirrored: Mirrored) -> None:
    with mirrored.running():
        mirrored.is_streaming("a", "b")
        _write(mirrored, "a", "b", first=101)
        rows = mirrored.database.value("SELECT count(*) FROM a")
        mirrored.database.execute("DROP TABLE a")
        _becomes(mirrored, "a", "DROPPED")
        assert _count(mirrored, "public.a") == rows
        mirrored.database.execute("CREATE TABLE a (id int PRIMARY KEY, w text); INSERT INTO a VALUES (1, 'again')")
        mirrored.becomes_equal("a", "b")
        wait_until(lambda: len(_mirror(mirrored).tables()) == 2, PATIENCE, lambda: _mirror(mirrored).tables())
        mirrored.database.execute("INSERT INTO a VALUES (2, 'more')")
        mirrored.follows("a", "b")


@pytest.mark.slow
def test_a_resync_that_is_asked_for_while_changes_are_applied_is_done(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, noticed, go = threading.Event(), threading.Event(), threading.Event()
    apply, request = Lake.apply, TableRuntime.request_copy

    def waiting(self: Lake, applied: Applied, batch: Batch, source_id: str, epoch: int = 0) -> Applied:
        began.set()
        assert go.wait(PATIENCE)
        return apply(self, applied, batch, source_id, epoch)

    def noticing(self: TableRuntime, asked: datetime | None = None) -> None:
        request(self, asked)
        noticed.set()

    def copies() -> int:
        return [entry.after for entry in _mirror(mirrored).history("a")].count("SNAPSHOT")

    with mirrored.running():
        mirrored.is_streaming("a", "b")
        assert copies() == 1
        monkeypatch.setattr(Lake, "apply", waiting)
        monkeypatch.setattr(TableRuntime, "request_copy", noticing)
        _write(mirrored, "a", first=100)
        assert began.wait(PATIENCE)
        mirrored.resync("a")
        assert noticed.wait(PATIENCE)
        go.set()
        wait_until(lambda: copies() == 2, PATIENCE, lambda: f"a second copy: {mirrored.table('a')}")
        mirrored.follows("a", "b")


def test_readers_of_a_table_that_is_re_copied_see_all_of_it(mirrored: Mirrored) -> None:
    """While nobody writes, every read of the table during resyncs has the same rows."""
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(_count(mirrored, "public.a"))

    with mirrored.running():
        mirrored.is_streaming("a", "b")
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(3):
                before = _versions(mirrored.lake, "public", "a")
                Mirror(mirrored.config).resync(["public.a", "public.b"], together=True)
                wait_until(lambda: _versions(mirrored.lake, "public", "a") > before, PATIENCE, "it is re-copied")  # noqa: B023
                mirrored.is_streaming("a", "b")
        finally:
            stop.set()
            reader.join()
    assert set(seen) == {50} and len(seen) > 10


@pytest.mark.parametrize("late", [False, True], ids=["looked before it ended", "believed after it ended"])
def test_a_look_while_a_table_is_taken_over_asks_for_no_re_copy(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    looked, ended = threading.Event(), threading.Event()
    under_way = threading.Event()
    restate, look, end = Lake.restate, DesiredStateReader.read, PostgresStateStore.end_take_over

    def held(self: Lake, applied: Applied, source_id: str, epoch: int) -> Applied:
        under_way.set()
        assert looked.wait(PATIENCE)
        return restate(self, applied, source_id, epoch)

    def seen(self: DesiredStateReader, strict: bool = False) -> DesiredState:
        meanwhile = under_way.is_set() and not looked.is_set()
        wanted = look(self, strict)
        if meanwhile and wanted.resyncs:
            looked.set()
            assert not late or ended.wait(PATIENCE)
        return wanted

    def told(self: PostgresStateStore, oid: int, group: str, copied: bool) -> bool:
        try:
            return end(self, oid, group, copied)
        finally:
            ended.set()

    mirror = _mirror(mirrored)
    with mirrored.running():
        mirrored.is_streaming("a", "b")
        mirror.create_group(GroupSpec("second", True, flush_interval=0.1))
        wait_until(lambda: _group_state(mirror, "second") == "RUNNING", PATIENCE, mirror.groups)
        monkeypatch.setattr(Lake, "restate", held)
        monkeypatch.setattr(DesiredStateReader, "read", seen)
        monkeypatch.setattr(PostgresStateStore, "end_take_over", told)
        mirror.move(["public.a"], "second")
        wait_until(lambda: _group_of(mirrored, "a") == "second", PATIENCE, lambda: mirrored.table("a"))
        _write(mirrored, "a", "b", first=101)
        mirrored.follows("a", "b")
        assert looked.is_set() and ended.is_set()
        assert _handovers(mirror.history("public.a")).count("SNAPSHOT") == 1


def test_a_table_moves_to_a_group_made_while_a_run_is_on_without_a_re_copy(mirrored: Mirrored) -> None:
    mirror = _mirror(mirrored)
    with mirrored.running():
        mirrored.is_streaming("a", "b")
        mirror.create_group(GroupSpec("second", True, flush_interval=0.1))
        wait_until(lambda: _group_state(mirror, "second") == "RUNNING", PATIENCE, mirror.groups)
        _write(mirrored, "a", "b", first=101)
        mirror.move(["public.a"], "second")
        for number in range(102, 110):
            _write(mirrored, "a", "b", first=number)
        wait_until(lambda: _group_of(mirrored, "a") == "second", PATIENCE, lambda: mirrored.table("a"))
        _write(mirrored, "a", "b", first=120)
        mirrored.follows("a", "b")
        assert _handovers(mirror.history("public.a")).count("SNAPSHOT") == 1
        with pytest.raises(CommandRefused, match="it is in the configuration"):
            mirror.drop_group("default")
        mirror.enable_group("second", False)
        wait_until(
            lambda: _group_state(mirror, "second") == "DISABLED" and _holder(mirror, "second") is None,
            PATIENCE,
            mirror.groups,
        )
        _write(mirrored, "a", first=121)
        mirror.enable_group("second")
        mirrored.follows("a", "b")
        mirror.move(["public.a"], "default")
        wait_until(lambda: _group_of(mirrored, "a") == "default", PATIENCE, lambda: mirrored.table("a"))
        _write(mirrored, "a", "b", first=122)
        mirrored.follows("a", "b")
        assert mirror.drop_group("second")
        slots = "SELECT array_agg(slot_name::text) FROM pg_replication_slots WHERE database = current_database()"
        assert mirrored.database.value(slots) == [mirrored.slot]
        assert mirrored.database.value("SELECT count(*) FROM pg_publication") == 1


def test_a_failing_table_delays_neither_the_others_nor_the_slot_and_loses_nothing(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long that only the command can end it.
    monkeypatch.setattr("wal2lake.retry.TABLE", Backoff(600.0, 600.0))
    with mirrored.running():
        mirrored.is_streaming("a", "b")
        place, aside = table_directory(mirrored.lake, "b"), mirrored.lake / "aside"
        place.rename(aside)
        _write(mirrored, "a", "b", first=101)
        failed = mirrored.fails("b")
        assert failed.retry_at is not None
        for number in (102, 103):
            _write(mirrored, "a", "b", first=number)
            mirrored.follows("a")
            mirrored.slot_passes(mirrored.now())
    # The waiting time is kept over a restart; a command ends it.
    with mirrored.running():
        mirrored.is_streaming("a")
        kept = mirrored.fails("b")
        assert kept.retry_at == failed.retry_at, (kept, failed)
        if place.exists():
            raise AssertionError("something was made in the place of the lake table")
        aside.rename(place)
        _mirror(mirrored).resume(["public.b"])
        mirrored.follows("a", "b")
        table = mirrored.table("b")
        assert table is not None and table.error is None and table.retry_at is None
    assert "ERRORED" in _handovers(_mirror(mirrored).history("public.b"))


@pytest.mark.slow
def test_a_gap_is_mended_by_itself_where_that_is_asked_for(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    mirrored.catches_up("a", "b")
    _write(mirrored, "a", "b", first=101)
    mirrored.database.execute("SELECT pg_drop_replication_slot(%s)", [mirrored.slot])
    _write(mirrored, "a", "b", first=102)
    result = Mirror(mirrored.config, mirrored.spark).run_once(options=RunOptions(resync_on_gap=True))
    assert result.ok, result.missed
    assert "the tables are re-copied" in caplog.text
    assert logged_errors(caplog) == [], "nobody has to do anything"
    mirrored.equal("a", "b")
    _write(mirrored, "a", "b", first=103)
    mirrored.catches_up("a", "b")


def test_slots_are_made_for_failover_where_that_is_configured(mirrored: Mirrored) -> None:
    mirrored.configure(source={"failover": True})
    mirrored.catches_up("a", "b")
    failover = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert mirrored.database.value(failover, [mirrored.slot]) is True


def _group_state(mirror: Mirror, name: str) -> str | None:
    return next((group.state for group in mirror.groups() if group.name == name), None)


def _holder(mirror: Mirror, name: str) -> str | None:
    return next(group.holder for group in mirror.groups() if group.name == name)


def _group_of(mirrored: Mirrored, name: str) -> str | None:
    table = mirrored.table(name)
    return table.group if table is not None else None


def test_a_table_is_committed_as_often_as_its_own_interval_says(mirrored: Mirrored) -> None:
    settings = {"public.b": {"flush_interval": 3600, "flush_bytes": 100_000}}
    mirrored.configure(tables=settings)
    with mirrored.running():
        mirrored.is_streaming("a", "b")
        before = mirrored.table("b")
        _write(mirrored, "a", "b", first=100)
        mirrored.follows("a")
        waits = mirrored.table("b")
        assert waits is not None and before is not None and waits.changes_applied == before.changes_applied == 0
        mirrored.database.execute(
            "INSERT INTO b SELECT i, md5(i::text) || md5((-i)::text) FROM generate_series(1000, 5000) i"
        )
        mirrored.follows("a", "b")
        _write(mirrored, "b", first=101)
    mirrored.catches_up("a", "b")


@pytest.mark.slow
def test_a_table_that_was_dropped_from_the_publication_is_re_copied(mirrored: Mirrored) -> None:
    mirrored.catches_up("a", "b")
    take_out = "ALTER PUBLICATION wal2lake_default DROP TABLE a"
    mirrored.database.execute(take_out)
    _write(mirrored, "a", "b", first=100)
    mirrored.catches_up("a", "b")
    with mirrored.running():
        mirrored.is_streaming("a", "b")
        mirrored.database.execute(take_out)
        _write(mirrored, "a", "b", first=101)
        mirrored.becomes_equal("a", "b")
