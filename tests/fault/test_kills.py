"""`kill -9` of the capture process and of the main process, at moments that chance decides, under a busy writer.

The seed is printed; WAL2LAKE_TEST_SEED repeats its decisions, WAL2LAKE_TEST_ROUNDS sets the number of kills.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from mirroring import GROUP
from processes import capture_of, descendants
from writing import TABLES, Writer, make_tables

from changelogs import directory_of
from command import TIMEOUT, Project, Running
from oracle import assert_equal_tables
from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.demo.compare import open_catalog
from wal2lake.source.publishing.slot import slot_name

ROUNDS = proof_size("WAL2LAKE_TEST_ROUNDS", long=20, short=3)
DEATH_SECONDS = 15
LONGEST_LIFE = 20.0
"""seconds that a run may have before it is killed; a start takes a good part of them"""


def _seed() -> int:
    return int(os.environ.get("WAL2LAKE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))


def _slot_is_free(database: Database) -> bool:
    name = slot_name(GROUP, database.name)
    used = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND active"
    return bool(database.value(used, [name]) == 0)


def _kill_main(run: Running, database: Database) -> None:
    """What it started must go by itself: the JVM, the capture process, and with it the slot's reader."""
    started = descendants(run.process.pid)
    run.signal(signal.SIGKILL)
    assert run.wait().code == -signal.SIGKILL
    wait_until(
        lambda: not [each for each in started if each.alive],
        DEATH_SECONDS,
        lambda: f"all that it started ends: {[each for each in started if each.alive]}",
    )
    wait_until(lambda: _slot_is_free(database), DEATH_SECONDS, "the slot is free")


def _kill_capture(run: Running) -> None:
    """It is started again by its parent, which goes on."""
    capture = wait_until(lambda: capture_of(run.process.pid), TIMEOUT, lambda: f"capture starts: {run.err}")
    assert capture is not None
    os.kill(capture.pid, signal.SIGKILL)
    wait_until(
        lambda: (again := capture_of(run.process.pid)) is not None and again.pid != capture.pid,
        TIMEOUT,
        lambda: f"capture starts again: {run.err}",
    )
    assert run.running, run.err


def _kill_at_random(project: Project, database: Database, chance: random.Random, rounds: int) -> None:
    run: Running | None = None
    for number in range(rounds):
        if run is None:
            run = project.start("run")
            # One moment is enough for the whole first start; the rest is left to chance.
            wait_until(lambda run=run: capture_of(run.process.pid), TIMEOUT, lambda run=run: run.err)  # type: ignore[misc]
        time.sleep(chance.random() ** 2 * LONGEST_LIFE)
        assert run.running, run.err
        # The last kill is the main process's: nothing of ours may be left for the catch-up to meet.
        if chance.random() < 0.5 and number < rounds - 1:
            _kill_capture(run)
        else:
            _kill_main(run, database)
            run = None


def _assert_no_orphans(lake: Path) -> None:
    log = ChangeLog(storage_for(lake / "_wal2lake"), GROUP)
    named = {s.file for m in log.after(log.oldest() - 1) for cut in m.tables.values() for s in cut.segments}
    there = {file.relative_to(directory_of(log)).as_posix() for file in directory_of(log).rglob("*.parquet")}
    assert there == named
    assert list(directory_of(log).rglob("*.tmp")) == []
    assert list((lake / "_wal2lake" / "copies").glob("*")) == []


def _assert_positions(lake: Path) -> None:
    with open_catalog(lake) as catalog:
        for name in TABLES:
            snapshot = catalog.load_table(("public", name)).current_snapshot()
            summary = snapshot.summary.additional_properties
            assert {"wal2lake.lsn", "wal2lake.manifest", "wal2lake.changes"} <= set(summary), name


def _prove(project: Project, database: Database, rounds: int) -> None:
    seed = _seed()
    print(f"WAL2LAKE_TEST_SEED={seed} repeats these {rounds} rounds")  # noqa: T201 - shown when the test fails
    make_tables(database)
    project.configure(database.dsn)
    with Writer(database, seed) as writer:
        _kill_at_random(project, database, random.Random(seed), rounds)
        assert writer.committed > 0
    caught_up = project.run("run", "--once")
    assert caught_up.code == 0, caught_up.all
    assert_equal_tables(database, project.lake, TABLES)
    _assert_positions(project.lake)
    _assert_no_orphans(project.lake)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_repeated_by_kills(project: Project, database: Database) -> None:
    _prove(project, database, ROUNDS)
