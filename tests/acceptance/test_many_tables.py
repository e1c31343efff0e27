"""Many tables in one group: a start does not wait for each in turn. WAL2LAKE_TEST_TABLES says how many."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from command import Project
from oracle import assert_equal_tables
from proof_size import proof_size
from servers import Database
from waiting import wait_until

TABLES = proof_size("WAL2LAKE_TEST_TABLES", long=1000, short=60)
START_SECONDS = 60.0
PATIENCE = 3600.0


def make_tables(database: Database, count: int) -> list[str]:
    names = [f"t{number:04}" for number in range(count)]
    for first in range(0, count, 50):
        database.execute(
            "; ".join(
                f"CREATE TABLE {name} (id int PRIMARY KEY, name text, amount numeric(12,2), at timestamptz);"
                f"INSERT INTO {name} SELECT i, 'n' || i, i, now() FROM generate_series(1, 10) i"
                for name in names[first : first + 50]
            )
        )
    return names


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_tables_that_are_copied_already_stream_within_a_minute_of_the_start(
    project: Project, database: Database
) -> None:
    names = make_tables(database, TABLES)
    project.configure(database.dsn)
    began = time.monotonic()
    finished = project.run("run", "--once", timeout=PATIENCE)
    assert finished.code == 0, finished.all
    copied = time.monotonic() - began
    database.execute(f"UPDATE {names[-1]} SET name = 'changed while nobody ran'")

    began = time.monotonic()
    run = project.start("run")

    def streaming() -> bool:
        assert run.running, run.err
        status = project.status()
        states = Counter(table["state"] for table in status["tables"])
        return status["groups"][0]["state"] == "RUNNING" and states == {"STREAMING": TABLES}

    wait_until(streaming, PATIENCE, lambda: run.err)
    started = time.monotonic() - began
    print(f"{TABLES} tables: copied in {copied:.1f} s, started in {started:.1f} s")  # noqa: T201 - the measurement
    assert started < START_SECONDS

    def applied() -> bool:
        (last,) = [table for table in project.status()["tables"] if table["name"] == f"public.{names[-1]}"]
        return bool(last["changes_applied"] == 10)

    wait_until(applied, PATIENCE, lambda: run.err)
    assert_equal_tables(database, project.lake, [names[0], names[-1]])
