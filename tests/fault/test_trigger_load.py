"""pgbench with eight clients on tables that are captured by triggers, beside two clients that are idle in transaction."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from mirroring import GROUP, Mirrored

from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake.demo.server import find_binaries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SECONDS = proof_size("WAL2LAKE_TEST_SECONDS", long=300, short=12)
IDLE_SECONDS = SECONDS / 5
"""in which a transaction is left open"""
PATIENCE = 600.0
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
BUFFERED = (
    "SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::int8, coalesce(sum(n_tup_ins), 0)::int8"
    " FROM pg_stat_user_tables WHERE schemaname = 'wal2lake_changes' AND relname LIKE 'changes%'"
)
LEAST_ROW_BYTES = 60
"""that a buffered row takes"""
SLACK_BYTES = 4 << 20


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    pgbench(database, "-i", "-s", "2", "-q").check_returncode()
    database.execute("CREATE TABLE markers (id int PRIMARY KEY); INSERT INTO markers VALUES (0)")
    return Mirrored(
        database, tmp_path / "lake", spark, groups=[{"name": GROUP, "flush_interval": 0.5, "capture": "trigger"}]
    )


def pgbench(database: Database, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(find_binaries() / "pgbench"), *options, database.dsn]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@contextmanager
def load(database: Database) -> Iterator[subprocess.Popen[str]]:
    command = [str(find_binaries() / "pgbench"), "-c", "8", "-T", str(SECONDS), "-n", database.dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def idle_in_transaction(database: Database, number: int) -> Iterator[None]:
    """A client that has written and does not commit before the end of the block, which takes its time."""
    with closing(psycopg.connect(database.dsn)) as session:
        session.execute("INSERT INTO markers VALUES (%s)", [number])
        session.execute("INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (1, 1, 1, %s)", [number])
        yield
        idle = "SELECT clock_timestamp() - xact_start >= make_interval(secs => %s) FROM pg_stat_activity WHERE pid = %s"
        pid = session.info.backend_pid
        wait_until(lambda: database.value(idle, [IDLE_SECONDS, pid]), PATIENCE, "time to pass in a transaction")
        session.commit()


def test_clients_that_are_idle_in_transaction_hold_back_nothing_but_their_own_rows(mirrored: Mirrored) -> None:
    database = mirrored.database
    with mirrored.running():
        mirrored.is_streaming("markers", *TABLES)
        with load(database) as process:
            for number in (1, 2):
                with idle_in_transaction(database, -number):
                    database.execute(f"INSERT INTO markers VALUES ({number})")
                    # The others' rows are in the lake while that transaction is open, and nothing of its own.
                    mirrored.follows("markers")
            before = database.rows(BUFFERED)[0]
            output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
        mirrored.becomes_equal("markers", *TABLES, patience=PATIENCE)
    size, written = database.rows(BUFFERED)[0]
    # What came after the open transactions went into the space of what had been emptied.
    assert size <= before[0] + SLACK_BYTES + (written - before[1]) * LEAST_ROW_BYTES / 10, (before, size, written)
    assert database.value("SELECT count(*) FROM pgbench_history") > 2
