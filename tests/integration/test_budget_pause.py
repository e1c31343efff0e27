"""A full change log: capture waits with its connection alive, loses nothing, and continues automatically."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from capturing import PATIENCE, SLOT, CapturedGroup
from servers import Database, running_server
from waiting import wait_until
from wal2lake.capture.report import CaptureReport, CaptureState
from wal2lake.changelog.budget import FillLevel
from wal2lake.config import ChangelogConfig
from wal2lake.errors import ConnectionFailed
from wal2lake.position import Lsn

MAX_BYTES = 1024 * 1024
ROWS_A_MEGABYTE = 330


class Full:
    """A group whose log is small, and what has been taken out of it."""

    def __init__(self, group: CapturedGroup) -> None:
        self.group, self.database = group, group.database
        self.taken: list[int] = []
        self._upto = 0

    def write(self, transactions: int, rows: int = ROWS_A_MEGABYTE // 4) -> None:
        """Random text, which no compression makes small: a quarter of the budget in each transaction."""
        noise = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 96 + 0 * i))"
        for _ in range(transactions):
            self.database.execute(f"INSERT INTO t (v) SELECT {noise} FROM generate_series(1, {rows}) i")

    def fill(self) -> CaptureReport:
        """Write, a manifest at a time, until capture waits."""
        for _ in range(20):
            self.write(1)
            until = Lsn.parse(self.database.value("SELECT pg_current_wal_lsn()::text"))
            report = self.group.logged(until, lambda r: r.budget.paused)
            if report.budget.paused:
                return report
        raise AssertionError(self.group.capture.report())

    def take_out(self) -> None:
        """What an apply does: read what is there, then retire it."""
        oid = self.group.oid("t")
        for manifest in self.group.log.after(self._upto):
            self._upto = manifest.number
            for segment in manifest.tables[oid].segments:
                self.taken += pq.read_table(self.group.log.uri(segment), columns=["id"]).column("id").to_pylist()
        self.group.log.retire(self._upto)

    def reaches(self, level: FillLevel) -> CaptureReport:
        report = self.group.capture.wait_for(lambda r: r.budget.level is level, PATIENCE)
        assert report.budget.level is level, report
        return report

    def reader(self) -> int | None:
        """The process that serves the slot; another one after each reconnect."""
        return self.database.value(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{SLOT}'")  # type: ignore[no-any-return]

    def logged_up_to(self, until: Lsn) -> bool:
        self.take_out()
        self.group.capture.request_flush(until)
        return self.group.capture.report().logged_lsn >= until


@pytest.fixture
def full(database: Database, tmp_path: Path) -> Iterator[Full]:
    # A server that soon cuts a connection without a sign of life.
    database.execute(f"ALTER DATABASE \"{database.name}\" SET wal_sender_timeout = '2s'")
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, v text)")
    group = CapturedGroup(database, tmp_path)
    group.config = group.config.model_copy(update={"changelog": ChangelogConfig(max_bytes=MAX_BYTES)})
    group.begin("t").close()
    group.start()
    try:
        yield Full(group)
    finally:
        group.stop()


def test_capture_waits_while_the_log_is_full_and_goes_on_when_it_is_not(full: Full) -> None:
    report = full.fill()
    assert report.budget.bytes >= MAX_BYTES
    reader = full.reader()
    full.write(8)
    until = full.database.value("SELECT pg_current_wal_lsn()::text")
    began = full.database.value("SELECT clock_timestamp()")
    wait_until(
        lambda: full.database.value("SELECT clock_timestamp() - %s > interval '3 s'", [began]), 30, "time passes"
    )
    waited = full.group.capture.report()
    assert (waited.state, waited.error, waited.budget.level) == (CaptureState.STREAMING, None, FillLevel.FULL)
    assert full.reader() == reader
    assert full.group.confirmed() <= full.group.log.position() < Lsn.parse(until), "the slot holds what came later"

    wait_until(lambda: full.logged_up_to(Lsn.parse(until)), PATIENCE, full.group.capture.report)
    full.take_out()
    assert full.taken == [row[0] for row in full.database.rows("SELECT id FROM t ORDER BY id")]
    assert full.reader() == reader
    full.write(1, rows=1)
    full.group.catch_up()
    full.take_out()
    full.write(1, rows=1)
    full.group.catch_up()
    full.reaches(FillLevel.OK)


def test_a_transaction_larger_than_the_whole_budget_is_taken(full: Full) -> None:
    full.write(1, rows=8 * ROWS_A_MEGABYTE)
    until = Lsn.parse(full.database.value("SELECT pg_current_wal_lsn()::text"))
    report = full.group.capture.wait_for(lambda r: r.logged_lsn >= until, PATIENCE)
    assert report.logged_lsn >= until, report
    full.take_out()
    assert len(full.taken) == 8 * ROWS_A_MEGABYTE


def test_capture_that_waits_can_be_stopped_and_waits_again_after_a_start(full: Full) -> None:
    full.fill()
    assert full.group.stop().state is CaptureState.STOPPED
    full.group.start()
    full.reaches(FillLevel.FULL)
    full.write(2)
    until = Lsn.parse(full.database.value("SELECT pg_current_wal_lsn()::text"))
    wait_until(lambda: full.logged_up_to(until), PATIENCE, full.group.capture.report)
    full.take_out()
    assert full.taken == [row[0] for row in full.database.rows("SELECT id FROM t ORDER BY id")]


def test_a_server_in_fast_shutdown_does_not_wait_for_capture_that_waits(tmp_path: Path) -> None:
    with running_server() as server:
        database = Database(server, "postgres")
        database.execute("CREATE TABLE t (id serial PRIMARY KEY, v text)")
        group = CapturedGroup(database, tmp_path)
        group.config = group.config.model_copy(update={"changelog": ChangelogConfig(max_bytes=MAX_BYTES)})
        group.begin("t").close()
        group.start()
        try:
            full = Full(group)
            full.fill()
            full.write(8)
            database.close()
            assert server.pid is not None
            os.kill(server.pid, signal.SIGINT)
            wait_until(lambda: not (server.data / "postmaster.pid").exists(), 20, "the server is down")
            report = group.capture.wait_for(lambda r: r.state is CaptureState.RECONNECTING, PATIENCE)
            assert isinstance(report.error, ConnectionFailed), report
        finally:
            group.stop()
