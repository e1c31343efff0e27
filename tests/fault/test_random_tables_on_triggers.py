"""Tables on triggers beside tables in the WAL, under random changes of every kind, while processes are killed.

The seed is printed; WAL2LAKE_TEST_SEED repeats its decisions, WAL2LAKE_TEST_ROUNDS sets the number of kills.
"""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from mirroring import PATIENCE, Mirrored
from processes import capture_of
from test_tables_on_triggers import has_triggers, left, modes
from writing import InBackground

from command import Project
from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake import faults
from wal2lake.faults import VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROUNDS = proof_size("WAL2LAKE_TEST_ROUNDS", long=20, short=2)
TABLES = ("keyed", "bag", "parts", "long", "gains", "loses")
_MAKE = """
CREATE TABLE keyed (id int PRIMARY KEY, n int, v text);
CREATE TABLE bag (a int, n numeric, at timestamptz, v text);
CREATE TABLE parts (k int, n int, v text) PARTITION BY RANGE (k);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (50);
CREATE TABLE parts_rest PARTITION OF parts DEFAULT;
CREATE TABLE long (a int, body text);
ALTER TABLE long ALTER body SET STORAGE EXTERNAL;
CREATE TABLE gains (id int NOT NULL, n int, v text);
CREATE UNIQUE INDEX gains_id ON gains (id);
CREATE TABLE loses (id int, n int, v text, CONSTRAINT loses_key PRIMARY KEY (id));
INSERT INTO keyed SELECT i, 0, 'k' FROM generate_series(1, 100) i;
INSERT INTO bag SELECT i % 9, i / 3.0, '2024-01-01Z', 'b' FROM generate_series(1, 100) i;
INSERT INTO parts SELECT i % 100, 0, 'p' FROM generate_series(1, 200) i;
INSERT INTO long SELECT i % 7, repeat(md5(i::text), 80) FROM generate_series(1, 40) i;
INSERT INTO gains SELECT i, 0, 'g' FROM generate_series(1, 100) i;
INSERT INTO loses SELECT i, 0, 'l' FROM generate_series(1, 100) i;
"""


class Writer(InBackground):
    """Changes of every kind. `refused`: updates that PostgreSQL refused, because a table lost its key a moment ago."""

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(database)
        self._random = random.Random(seed)
        self._next = 1_000_000
        self.refused = 0

    def _step(self, connection: psycopg.Connection[Any]) -> float:
        chance = self._random.random
        try:
            for _ in range(self._random.randint(1, 4)):
                if chance() < 0.15:
                    with connection.transaction(force_rollback=True):
                        connection.execute(self._change())
                else:
                    connection.execute(self._change())
        except psycopg.errors.ObjectNotInPrerequisiteState:
            connection.rollback()
            self.refused += 1
            return 0.05
        if chance() < 0.07:
            connection.rollback()
        else:
            connection.commit()
            self.committed += 1
        return chance() * 0.1

    def _change(self) -> bytes:
        number, other = self._random.randint(0, 99), self._random.randint(100, 10_000)
        self._next += 1
        fresh = self._next
        some = [
            f"INSERT INTO keyed VALUES ({other}, {number}, 'i') ON CONFLICT (id) DO UPDATE SET n = keyed.n + 1",
            f"UPDATE keyed SET id = {fresh} WHERE id = {number}",
            f"DELETE FROM keyed WHERE id = {number}",
            f"INSERT INTO bag SELECT {number % 9}, {other}.5, now(), 'i' FROM generate_series(1, {number % 4 + 1})",
            f"UPDATE bag SET n = n + 1, v = v || 'u' WHERE a = {number % 9} AND length(v) < 30",
            f"DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = {number % 9} LIMIT 2)",
            f"INSERT INTO parts VALUES ({number}, 1, 'root'), ({number}, 1, 'root')",
            f"INSERT INTO parts_low VALUES ({number % 50}, 2, 'leaf')",
            f"UPDATE parts SET k = (k + 50) % 100, n = n + 1 WHERE k = {number}",
            f"DELETE FROM parts_rest WHERE k = {50 + number % 50}",
            f"UPDATE long SET a = a + 1 WHERE a % 7 = {number % 7}",
            f"UPDATE long SET body = repeat(md5('{other}'), 80) WHERE a = {number % 7}",
            "WITH gone AS (DELETE FROM long WHERE a > 20 RETURNING body) INSERT INTO long SELECT 0, body FROM gone",
            f"INSERT INTO gains VALUES ({other}, 1, 'i') ON CONFLICT (id) DO UPDATE SET n = gains.n + 1",
            f"UPDATE gains SET id = {fresh} WHERE id = {other}",
            f"INSERT INTO loses VALUES ({fresh}, 1, 'i')",
            f"UPDATE loses SET n = n + 1 WHERE id % 10 = {number % 10}",
            f"DELETE FROM loses WHERE id = {number}",
        ]  # fmt: skip
        if self._random.random() < 0.01:
            some = ["TRUNCATE bag", "TRUNCATE parts, long", "TRUNCATE parts_low"]
        elif self._random.random() < 0.02:
            # Large enough to be streamed before its commit.
            some = [f"INSERT INTO bag SELECT i % 9, i, now(), 'many' FROM generate_series(1, {2000 + other // 4}) i"]
        return self._random.choice(some).encode()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal2lake.scheduling.lanes.MAINTAIN_SECONDS", 0.3)
    monkeypatch.setattr("wal2lake.reconcile.reconciler.REFRESH_SECONDS", 1.0)


def _reaches(writer: Writer, goal: int) -> bool:
    return writer.committed > goal


def _seed() -> int:
    return int(os.environ.get("WAL2LAKE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("capture", ["auto", "poll"])
def test_random_changes_with_kills_and_tables_that_get_and_lose_their_keys(
    project: Project, database: Database, tmp_path: Path, spark: SparkSession, capture: str
) -> None:
    seed = _seed()
    print(f"WAL2LAKE_TEST_SEED={seed} repeats this")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    database.execute(_MAKE)
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")
    groups = [{"name": "default", "flush_interval": 0.1, "capture": capture}]
    tables = {f"public.{name}": {"capture": "auto"} for name in TABLES}
    mirrored = Mirrored(database, project.lake, spark, groups=groups, tables=tables)
    settings = f'[[groups]]\nname = "default"\nflush_interval = 0.1\ncapture = "{capture}"\n'
    settings += "".join(f'[tables."{name}"]\ncapture = "auto"\n' for name in tables)
    project.configure(database.dsn, settings)
    with Writer(database, chance.randrange(1 << 30)) as writer:
        for number in range(ROUNDS):
            point = None if number else faults.BUFFER_PUBLISHED
            print(f"round {number}: {point or 'any moment'}")  # noqa: T201
            run = project.start("run", env=None if point is None else {VARIABLE: point})
            if point is None:
                mirrored.is_streaming("keyed", "bag")
                capturing = wait_until(partial(capture_of, run.process.pid), PATIENCE, "the capture process")
                assert capturing is not None
                os.kill(capturing.pid, signal.SIGKILL)
                goal = writer.committed + 30
                wait_until(partial(_reaches, writer, goal), PATIENCE, "changes after the kill")
                run.signal(signal.SIGKILL)
            assert run.wait().code == -signal.SIGKILL
        wal = "POLL" if capture == "poll" else "WAL"
        with mirrored.running():
            mirrored.is_streaming(*TABLES)
            assert modes(mirrored) == {
                "keyed": wal, "bag": "TRIGGER", "parts": "TRIGGER", "long": "TRIGGER", "gains": "TRIGGER", "loses": wal,
            }  # fmt: skip
            database.execute("ALTER TABLE gains ADD PRIMARY KEY USING INDEX gains_id")
            database.execute("ALTER TABLE loses DROP CONSTRAINT loses_key")
            wait_until(
                lambda: (modes(mirrored)["gains"], modes(mirrored)["loses"]) == (wal, "TRIGGER"),
                PATIENCE, lambda: f"the other ways: {modes(mirrored)}, {mirrored.group()}",
            )  # fmt: skip
            wait_until(lambda: not has_triggers(database, "gains"), PATIENCE, "the triggers to go")
            refused, done = writer.refused, writer.committed
            wait_until(lambda: writer.committed > done + 200, PATIENCE, "changes after it")
            assert writer.refused == refused
    with mirrored.running():
        mirrored.becomes_equal(*TABLES)
    mirrored.command("teardown", "--yes")
    assert set(left(database).values()) == {0}
