"""The proofs at size: a million rows and a hundred thousand changes (a tenth in the short form), and pgbench's load."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

from command import Project, Running
from oracle import assert_equal_tables
from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake.demo.server import find_binaries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PATIENCE = 900.0
SCALE = proof_size("WAL2LAKE_TEST_SCALE", long=10, short=1)
"""hundred thousands of rows"""
PGBENCH_SECONDS = proof_size("WAL2LAKE_TEST_SECONDS", long=60, short=15)
PGBENCH_TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")


def _once(project: Project) -> None:
    finished = project.run("run", "--once", timeout=PATIENCE)
    assert finished.code == 0, finished.all


def test_a_million_rows_copied_and_a_hundred_thousand_mixed_changes_followed(
    project: Project, database: Database
) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer bigint, amount numeric(12,2), at timestamptz, note text,"
        " tags text[], paid boolean);"
        "INSERT INTO orders SELECT i, i % 9973, i / 7.0, timestamptz '2024-01-01' + i * interval '1 second',"
        " CASE WHEN i % 10 = 0 THEN NULL ELSE 'note ' || md5(i::text) END, ARRAY['t' || i % 5, NULL], i % 3 = 0"
        f" FROM generate_series(1, {SCALE * 100_000}) i"
    )
    project.configure(database.dsn)
    _once(project)
    assert_equal_tables(database, project.lake, ["orders"])

    # Of 100,000: 40,000 updates, 25,000 deletes, 30,000 inserts and 5,000 new keys, in transactions of many and of one.
    with database.connect() as connection:
        for first in range(1, SCALE * 4000 + 1, 1000):
            connection.execute(
                "UPDATE orders SET amount = amount + 1, note = 'changed' WHERE id BETWEEN %s AND %s",
                (first, first + 999),
            )
        for first in range(60_001, SCALE * 2500 + 60_001, 500):
            connection.execute("DELETE FROM orders WHERE id BETWEEN %s AND %s", (first, first + 499))
        connection.execute("UPDATE orders SET id = id + 5000000 WHERE id BETWEEN 50001 AND %s", (50_000 + SCALE * 500,))
        connection.execute(
            "INSERT INTO orders SELECT i, 1, 0.5, now(), '', '{}', NULL FROM generate_series(2000001, %s) i",
            (2_000_000 + SCALE * 2500,),
        )
        with connection.pipeline():
            for id in range(2_025_001, 2_025_001 + SCALE * 500):
                connection.execute("INSERT INTO orders (id, note) VALUES (%s, 'alone')", (id,))
    _once(project)
    assert_equal_tables(database, project.lake, ["orders"])
    (table,) = project.status()["tables"]
    assert table["changes_applied"] == SCALE * 10_000


def _pgbench(database: Database, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(find_binaries() / "pgbench"), *options, database.dsn], capture_output=True, text=True, check=True
    )


def _are_streaming(project: Project, run: Running, tables: Sequence[str]) -> None:
    def states() -> dict[str, str]:
        assert run.running, run.err
        return {table["name"]: table["state"] for table in project.watch()["tables"]}

    wait_until(lambda: all(states().get(f"public.{t}") == "STREAMING" for t in tables), PATIENCE, lambda: run.err)


def test_pgbench_while_a_run_is_on(project: Project, database: Database) -> None:
    _pgbench(database, "-i", "-s", "5", "-q")
    project.configure(database.dsn, "[tables.'public.pgbench_history']\nappend_only = true")
    run = project.start("run")
    _are_streaming(project, run, PGBENCH_TABLES)
    _pgbench(database, "-c", "4", "-T", str(PGBENCH_SECONDS), "-n")
    position = database.value("SELECT pg_current_wal_insert_lsn()")
    database.execute("SELECT pg_logical_emit_message(true, 'test', '')")

    def behind() -> list[str]:
        assert run.running, run.err
        return [
            table["name"]
            for table in project.watch()["tables"]
            if not database.value("SELECT %s::pg_lsn >= %s", [table["applied_lsn"], position])
        ]

    wait_until(lambda: not behind(), PATIENCE, lambda: f"caught up: {behind()}")
    assert database.value("SELECT count(*) FROM pgbench_history") > 0
    assert_equal_tables(database, project.lake, PGBENCH_TABLES)
    assert run.running
