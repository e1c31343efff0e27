"""A snapshot exported by an ordinary session, and the transactions of the stream that it includes."""

from __future__ import annotations

import contextlib
import struct
import threading
from functools import partial

import psycopg
import pytest

from change_sources import SLOT
from servers import Database, nobody_answers
from waiting import wait_until
from wal2lake.config import SourceConfig
from wal2lake.errors import SourceBusy
from wal2lake.source.copies import session_snapshot
from wal2lake.source.copies.snapshot_session import SnapshotSession
from wal2lake.source.sessions.connect import connect
from wal2lake.source.sessions.locking import Patience

_PEEK = "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', 'p')"


def take(database: Database, patience: Patience | None = None) -> session_snapshot.SessionSnapshot:
    source = SourceConfig(dsn=database.dsn)
    with SnapshotSession(partial(connect, source)) as session:
        return session_snapshot.take(session, patience or Patience())


def commits(database: Database, statement: str) -> threading.Thread:
    """A statement whose commit waits for a standby."""

    def run() -> None:
        with contextlib.suppress(psycopg.Error), database.connect() as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute(statement.encode())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_until(lambda: bool(database.rows(waits)), 10, "a commit that waits for a standby")
    return thread


def prepare(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    database.rows(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")


def test_a_commit_that_waits_for_a_standby_is_below_the_position_and_not_in_the_copy(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap of an LSN read beside a snapshot: by position, this transaction would be skipped and be lost."""
    prepare(database)
    waited = session_snapshot.await_running

    def then_one_commits(control: object, patience: Patience) -> None:
        waited(control, patience)  # type: ignore[arg-type]
        database.execute("SET synchronous_commit = local; INSERT INTO t VALUES (1)")
        waiting.append(commits(database, "INSERT INTO t VALUES (2)"))

    waiting: list[threading.Thread] = []
    monkeypatch.setattr(session_snapshot, "await_running", then_one_commits)
    with nobody_answers(database), take(database) as held, database.connect(autocommit=False) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{held.snapshot.name}'")
        copied = reader.execute("SELECT id FROM t").fetchall()
        streamed = [bytes(data) for (data,) in database.rows(_PEEK.replace("%s", f"'{SLOT}'"))]
    waiting[0].join()
    database.execute("INSERT INTO t VALUES (3)")
    streamed = [bytes(data) for (data,) in database.rows(_PEEK.replace("%s", f"'{SLOT}'"))]
    begins = [struct.unpack(">xQQI", data) for data in streamed if data[:1] == b"B"]
    seen = held.snapshot.visibility
    assert seen is not None and copied == [(1,)]
    assert [seen.sees(lsn, xid) for lsn, _, xid in begins] == [True, False, False]
    assert [held.snapshot.lsn <= lsn < seen.until for lsn, *_ in begins] == [True, True, False]


def test_a_snapshot_waits_for_a_commit_that_waits_for_a_standby(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(database)
    told: list[object] = []
    with nobody_answers(database):
        thread = commits(database, "INSERT INTO t VALUES (1)")
        monkeypatch.setattr(session_snapshot, "REPORT_SECONDS", 0.1)
        with pytest.raises(SourceBusy):
            take(database, Patience(lambda: bool(told), told.append))
    thread.join()
    with take(database) as held:
        assert held.alive
        seen = held.snapshot.visibility
        assert seen is not None and seen.snapshot.running == frozenset()


def test_what_is_seen_is_what_postgres_says(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute("CREATE TABLE t (id int)")
    open_one, open_two = database.connect(autocommit=False), database.connect(autocommit=False)
    (first,) = database.rows("SELECT pg_current_xact_id()::text::int8")[0]
    with contextlib.closing(open_one), contextlib.closing(open_two):

        def others_write(*_: object) -> None:
            open_one.execute("INSERT INTO t VALUES (1)")
            database.execute("INSERT INTO t VALUES (2)")
            open_two.execute("INSERT INTO t VALUES (3)")
            database.execute("INSERT INTO t VALUES (4)")

        monkeypatch.setattr(session_snapshot, "await_running", others_write)
        held = take(database)
        with held:
            open_one.commit()
            seen = held.snapshot.visibility
            assert seen is not None and len(seen.snapshot.running) == 2
            text = str(seen).partition(" ")[0]
            xids = range(first - 3, first + 12)
            told = database.rows(
                f"SELECT pg_visible_in_snapshot(x::text::xid8, '{text}') FROM generate_series({xids[0]}, {xids[-1]}) x"
            )
            assert [seen.sees(held.snapshot.lsn, xid % 2**32) for xid in xids] == [one for (one,) in told]
