"""A group that chooses its capture mode: from triggers to the WAL without a copy, and back with one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from mirroring import GROUP, PATIENCE, Mirrored
from writing import TABLES, Writer, make_tables

from servers import Database, fresh_database, running_server
from waiting import wait_until
from wal2lake.demo.server import EmbeddedServer
from wal2lake.mirror import Mirror
from wal2lake.preflight import check
from wal2lake.source.wal_crossing import WalCrossing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def captured_by(mode: str) -> list[dict[str, object]]:
    return [{"name": GROUP, "flush_interval": 0.1, "capture": mode}]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal2lake.scheduling.lanes.LOOK_SECONDS", 0.3)
    monkeypatch.setattr("wal2lake.scheduling.lanes.AGAIN_SECONDS", 1.0)
    monkeypatch.setattr("wal2lake.scheduling.lanes.CLEAR_SECONDS", 0.3)


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    """Tables that triggers have captured so far, of a group that may choose from now on."""
    make_tables(database)
    made = Mirrored(database, tmp_path / "lake", spark, groups=captured_by("trigger"))
    made.catches_up(*TABLES)
    made.configure(groups=captured_by("auto"))
    return made


def counted(database: Database) -> dict[str, int]:
    """What a capture mode has in a database, by its kind."""
    (row,) = database.rows(
        "SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'wal2lake%'),"
        " (SELECT count(*) FROM pg_namespace WHERE nspname = 'wal2lake_changes'),"
        " (SELECT count(*) FROM pg_publication),"
        " (SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary)"
    )
    return dict(zip(("triggers", "buffers", "publications", "slots"), row, strict=True))


def by_wal(database: Database) -> bool:
    return counted(database) == {"triggers": 0, "buffers": 0, "publications": 1, "slots": 1}


def by_triggers(database: Database) -> bool:
    found = counted(database)
    return found["triggers"] > 0 and (found["buffers"], found["publications"], found["slots"]) == (1, 0, 0)


def crosses(mirrored: Mirrored) -> None:
    wait_until(lambda: by_wal(mirrored.database), PATIENCE, lambda: f"the WAL: {counted(mirrored.database)}")


def streams(mirrored: Mirrored, name: str) -> None:
    """Wait until a table is captured from the WAL, which its triggers may outlive."""

    def look() -> bool:
        table = mirrored.table(name)
        return table is not None and (table.mode, table.state) == ("WAL", "STREAMING")

    wait_until(look, PATIENCE, lambda: f"capture from the WAL: {mirrored.table(name)}")


def copies(mirrored: Mirrored) -> int:
    """Copies of tables that are not partitioned so far, by their history."""
    plain = set(TABLES) - {"measures"}
    histories = (Mirror(mirrored.config).history(f"public.{name}") for name in plain)
    return sum(entry.after == "SNAPSHOT" for history in histories for entry in history)


@contextmanager
def nobody_answers(database: Database) -> Iterator[None]:
    """Commits of sessions that ask for it wait for a synchronous standby that is not there."""
    database.execute(f'ALTER DATABASE "{database.name}" SET synchronous_commit = local')
    database.execute("SET synchronous_commit = local")
    with database.connect() as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


def commits_unanswered(database: Database, statement: str) -> threading.Thread:
    """A statement whose commit waits for the standby: its commit record is written, and nobody sees it."""

    def run() -> None:
        with database.connect() as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute(statement.encode())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: waiting(database), 10, "a commit that waits for a standby")
    return thread


def waiting(database: Database) -> bool:
    return bool(database.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))


def slots(database: Database) -> int:
    return counted(database)["slots"]


class At:
    """Something that is done once, when a crossing calls one of its methods."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, action: Callable[[], object]) -> None:
        self.done = threading.Event()
        called = getattr(WalCrossing, method)

        def then(crossing: WalCrossing, *values: object) -> object:
            if not self.done.is_set():
                self.done.set()
                action()
            return called(crossing, *values)

        monkeypatch.setattr(WalCrossing, method, then)


def test_a_group_changes_from_triggers_to_the_wal_under_load_without_a_copy(mirrored: Mirrored) -> None:
    database = mirrored.database
    before = copies(mirrored)
    listener = database.connect()
    listener.execute("LISTEN wal2lake_events")
    with mirrored.running(), Writer(database, 18) as writer:
        crosses(mirrored)
        done = writer.committed
        wait_until(lambda: writer.committed > done + 20, PATIENCE, "changes after it")
        writer._stop.set()
        mirrored.becomes_equal(*TABLES)
        status = mirrored.table("accounts")
        assert status is not None and status.mode == "WAL"
        assert mirrored.group().capture == "auto"
    assert copies(mirrored) == before
    told = [json.loads(one.payload) for one in listener.notifies(timeout=5, stop_after=len(TABLES))]
    assert {(one["table"], one["old"], one["new"], one["slot"]) for one in told} == {
        (f"public.{name}", "TRIGGER", "WAL", mirrored.slot) for name in TABLES
    }
    modes = [
        (e.before, e.after) for e in Mirror(mirrored.config).history("public.accounts") if e.detail == "capture mode"
    ]
    assert modes == [("TRIGGER", "WAL")]
    mirrored.command("teardown", "--yes")
    assert set(counted(database).values()) == {0}


def test_transactions_that_are_open_across_every_step_are_captured_once(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One holds the slot back, one the wait after it, one is open at the switch."""
    database = mirrored.database
    opened = [database.connect(autocommit=False) for _ in range(3)]

    def write(number: int) -> None:
        opened[number].execute("INSERT INTO journal VALUES (%s, 'open')", [number])
        opened[number].execute("UPDATE counters SET n = n + 1 WHERE id = %s", [number + 1])

    write(0)
    look = At(monkeypatch, "ready", lambda: write(1))
    end = At(monkeypatch, "finish", lambda: write(2))
    with mirrored.running(), Writer(database, 5):
        mirrored.is_streaming("counters")
        wait_until(lambda: counted(database)["publications"] == 1, PATIENCE, "the tables to be published")
        opened[0].commit()
        wait_until(look.done.is_set, PATIENCE, "a look at the transactions")
        opened[1].commit()
        wait_until(end.done.is_set, PATIENCE, "the switch")
        streams(mirrored, "counters")
        # Its locks keep the triggers, and nothing else.
        assert counted(database)["triggers"]
        opened[2].commit()
        crosses(mirrored)
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)


def test_a_commit_that_waits_for_a_standby_is_captured_once_whenever_it_begins(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the switch its commit record is below the position of the last drain, which does not have it."""
    database = mirrored.database
    waits: list[threading.Thread] = []

    def commit() -> None:
        waits.append(commits_unanswered(database, "INSERT INTO journal SELECT 1, 'late' FROM generate_series(1, 3)"))
        database.execute("UPDATE counters SET n = n + 1; DELETE FROM journal WHERE n < -190")

    with nobody_answers(database):
        look = At(monkeypatch, "finish", commit)
        with mirrored.running():
            wait_until(look.done.is_set, PATIENCE, "the switch")
            streams(mirrored, "counters")
            assert waiting(database)
            database.execute("UPDATE counters SET n = n + 1")
            mirrored.becomes_equal("counters", "accounts")
    waits[0].join()
    with mirrored.running():
        crosses(mirrored)
        mirrored.becomes_equal(*TABLES)


def test_a_crossing_that_takes_too_long_leaves_nothing_and_is_tried_again(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    database = mirrored.database
    mirrored.configure(source={"transition_timeout": 4.0})
    holding = database.connect(autocommit=False)
    holding.execute("INSERT INTO journal VALUES (0, 'held')")

    def attempts() -> int:
        return caplog.text.count("tries the WAL again later")

    with mirrored.running():
        wait_until(lambda: attempts() > 1, PATIENCE, "two attempts")
        wait_until(lambda: by_triggers(database), PATIENCE, "nothing to be left of an attempt")
        holding.commit()
        crosses(mirrored)
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedServer]:
    """A server that can be started again with another wal_level, on the same port."""
    with running_server() as server:
        monkeypatch.setattr("wal2lake.demo.server._free_port", lambda port=server.port: port)
        yield server


def restart(server: EmbeddedServer, wal_level: str) -> None:
    server.stop()
    server._settings["wal_level"] = wal_level
    server.start()


def drops_its_slots(database: Database) -> None:
    """As an administrator does before wal_level is lowered: the server would not start with them."""

    def dropped() -> bool:
        database.rows("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")
        with suppress(psycopg.Error):
            database.rows("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
        return not database.value("SELECT count(*) FROM pg_replication_slots")

    wait_until(dropped, PATIENCE, "the slots to be dropped")


def test_wal_level_from_replica_to_logical_and_back_while_the_mirror_runs(
    own_server: EmbeddedServer, tmp_path: Path, spark: SparkSession
) -> None:
    restart(own_server, "replica")
    with fresh_database(own_server) as database:
        database.execute(
            "CREATE TABLE counters (id int PRIMARY KEY, n int); CREATE TABLE journal (line text);"
            "ALTER TABLE journal REPLICA IDENTITY FULL; INSERT INTO counters SELECT i, 0 FROM generate_series(1, 9) i"
        )

        def change() -> None:
            database.execute("UPDATE counters SET n = n + 1; INSERT INTO journal VALUES ('a'), ('a')")

        mirrored = Mirrored(database, tmp_path / "lake", spark, groups=captured_by("auto"))
        assert any("captured by triggers" in str(finding) for finding in check(mirrored.config))
        with mirrored.running():
            change()
            mirrored.becomes_equal("counters", "journal")
            assert by_triggers(database)
            database.close()
            restart(own_server, "logical")
            change()
            crosses(mirrored)
            change()
            mirrored.becomes_equal("counters", "journal")
            drops_its_slots(database)
            database.close()
            restart(own_server, "replica")
            change()
            wait_until(lambda: by_triggers(database), PATIENCE, lambda: f"triggers: {counted(database)}")
            change()
            mirrored.becomes_equal("counters", "journal")
        told = [
            (e.before, e.after)
            for e in Mirror(mirrored.config).history("public.counters")
            if e.detail == "capture mode"
        ]
        assert told == [("TRIGGER", "WAL"), ("WAL", "TRIGGER")]
        mirrored.command("teardown", "--yes")
        assert set(counted(database).values()) == {0}


def test_tables_without_a_key_that_may_get_a_replica_identity_get_it_before_their_group_changes_to_the_wal(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE counters (id int PRIMARY KEY, n int); INSERT INTO counters SELECT i, 0 FROM generate_series(1, 9) i;"
        "CREATE TABLE lines (line text); INSERT INTO lines VALUES ('a'), ('a');"
        "CREATE TABLE parted (k int, v text) PARTITION BY LIST (k); CREATE TABLE one PARTITION OF parted FOR VALUES IN (1);"
        "INSERT INTO parted VALUES (1, 'a')"
    )

    def change() -> None:
        database.execute("UPDATE counters SET n = n + 1; DELETE FROM lines; INSERT INTO lines VALUES ('b'), ('b')")
        database.execute("UPDATE parted SET v = v || '.'")

    def identities() -> str:
        return str(database.value("SELECT string_agg(relreplident::text, '' ORDER BY relname) FROM pg_class"
                                  " WHERE relname IN ('counters', 'lines', 'one', 'parted')"))  # fmt: skip

    names = ("counters", "lines", "parted")
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=captured_by("trigger"))
    mirrored.catches_up(*names)
    assert (by_triggers(database), identities()) == (True, "dddd")
    mirrored.configure(groups=[{**captured_by("auto")[0], "auto_replica_identity": True}])
    notes = [one.object for one in check(mirrored.config) if "before its group changes to the WAL" in one.consequence]
    assert sorted(notes) == ["public.lines", "public.parted"]
    with mirrored.running():
        change()
        crosses(mirrored)
        assert identities() == "dffd"
        change()
        mirrored.becomes_equal(*names)
    told = [entry.detail for entry in Mirror(mirrored.config).history("public.lines")]
    assert told.count("replica identity of public.lines set to FULL") == 1


@pytest.mark.parametrize("changes", ["", "UPDATE counters SET n = n + 1; INSERT INTO journal VALUES (1, 'before')"])
def test_a_run_that_ends_when_it_has_caught_up_changes_to_the_wal(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, changes: str
) -> None:
    """It does not wait for the next look, and a second one finds nothing left to do."""
    for name in ("LOOK_SECONDS", "AGAIN_SECONDS", "CLEAR_SECONDS"):
        monkeypatch.setattr(f"wal2lake.scheduling.lanes.{name}", 3600.0)
    database = mirrored.database
    before = copies(mirrored)
    database.execute(changes)
    mirrored.catches_up(*TABLES)
    assert by_wal(database), counted(database)
    database.execute("UPDATE counters SET n = n + 1; DELETE FROM journal WHERE n = 1")
    mirrored.catches_up(*TABLES)
    assert copies(mirrored) == before
    assert mirrored.group().capture == "auto"


def test_a_run_that_ends_when_it_has_caught_up_undoes_a_change_that_takes_too_long(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    database = mirrored.database
    mirrored.configure(source={"transition_timeout": 3.0})
    holding = database.connect(autocommit=False)
    holding.execute("INSERT INTO journal VALUES (0, 'held')")
    database.execute("UPDATE counters SET n = n + 1; INSERT INTO journal VALUES (1, 'before')")
    mirrored.catches_up(*TABLES)
    assert caplog.text.count("tries the WAL again later") == 1
    assert by_triggers(database), counted(database)
    holding.commit()
    mirrored.catches_up(*TABLES)
    assert by_wal(database), counted(database)


def test_a_run_that_ends_when_it_has_caught_up_does_not_wait_where_changes_are_lost(mirrored: Mirrored) -> None:
    database = mirrored.database
    mirrored.catches_up(*TABLES)
    database.rows("SELECT pg_drop_replication_slot(%s)", [mirrored.slot])
    database.execute("UPDATE counters SET n = n + 1")
    began = time.monotonic()
    assert mirrored.once().missed
    assert time.monotonic() - began < 60 < mirrored.config.source.transition_timeout
    mirrored.resync()
    mirrored.catches_up(*TABLES)


def test_a_run_that_ends_when_it_has_caught_up_does_not_wait_for_what_blocks_the_change(
    mirrored: Mirrored, caplog: pytest.LogCaptureFixture
) -> None:
    database = mirrored.database
    database.execute("UPDATE counters SET n = n + 1")
    free = "current_setting('max_replication_slots')::int - (SELECT count(*)::int FROM pg_replication_slots)"
    database.execute(f"SELECT pg_create_physical_replication_slot('other_' || i) FROM generate_series(1, {free}) i")
    try:
        began = time.monotonic()
        mirrored.catches_up(*TABLES)
        assert time.monotonic() - began < 60 < mirrored.config.source.transition_timeout
    finally:
        database.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '^other_'"
        )
    assert by_triggers(database), counted(database)
    assert "begins to change" not in caplog.text


def test_a_table_without_a_replica_identity_keeps_its_triggers_when_its_group_changes_to_the_wal(
    own_server: EmbeddedServer, tmp_path: Path, spark: SparkSession
) -> None:
    restart(own_server, "replica")
    with fresh_database(own_server) as database:
        database.execute(
            "CREATE TABLE counters (id int PRIMARY KEY, n int); CREATE TABLE bag (a int, line text);"
            "CREATE TABLE parts (k int, v text) PARTITION BY RANGE (k);"
            "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (50);"
            "INSERT INTO counters SELECT i, 0 FROM generate_series(1, 9) i; INSERT INTO bag VALUES (1, 'a'), (1, 'a')"
        )
        tables = ("counters", "bag", "parts")
        mirrored = Mirrored(database, tmp_path / "lake", spark, groups=captured_by("auto"))

        def change() -> None:
            database.execute(
                "UPDATE counters SET n = n + 1; INSERT INTO bag SELECT n, 'b' FROM counters; UPDATE bag SET a = a + 1;"
                "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag LIMIT 2); INSERT INTO parts SELECT id, 'p' FROM"
                " counters; INSERT INTO low VALUES (7, 'leaf'); UPDATE parts SET v = v || 'x' WHERE k % 2 = 0"
            )

        def modes() -> dict[str, str]:
            return {table.name.removeprefix("public."): table.mode for table in Mirror(mirrored.config).tables()}

        mixed = {"counters": "WAL", "bag": "TRIGGER", "parts": "TRIGGER"}
        with mirrored.running():
            change()
            mirrored.becomes_equal(*tables)
            assert by_triggers(database)
            database.close()
            restart(own_server, "logical")
            change()
            opened = database.connect(autocommit=False)
            opened.execute("DELETE FROM bag WHERE line = 'a'; UPDATE counters SET n = 100 WHERE id = 1")
            wait_until(lambda: counted(database)["publications"] == 2, PATIENCE, "the tables to be published")
            change_of_others = "INSERT INTO parts VALUES (3, 'y'); INSERT INTO bag VALUES (77, 'z'), (77, 'z')"
            database.execute(change_of_others)
            opened.commit()
            opened.close()
            wait_until(lambda: modes() == mixed, PATIENCE, lambda: f"{modes()}, {mirrored.group()}")
            of_counters = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'counters'::regclass"
            wait_until(lambda: database.value(of_counters) == 0, PATIENCE, "the triggers of others to go")
            change()
            mirrored.becomes_equal(*tables)
            drops_its_slots(database)
            database.close()
            restart(own_server, "replica")
            change()
            wait_until(lambda: by_triggers(database), PATIENCE, lambda: f"triggers: {counted(database)}")
            change()
            mirrored.becomes_equal(*tables)
        for name, expected in (("counters", 2), ("bag", 0)):
            history = Mirror(mirrored.config).history(f"public.{name}")
            told = [(e.before, e.after) for e in history if e.detail == "capture mode"]
            assert told == [("TRIGGER", "WAL"), ("WAL", "TRIGGER")][:expected], name
        # Once at first, and once because the slot was lost.
        history = Mirror(mirrored.config).history("public.bag")
        assert sum(entry.after == "SNAPSHOT" for entry in history) == 2
        mirrored.command("teardown", "--yes")
        assert set(counted(database).values()) == {0}
