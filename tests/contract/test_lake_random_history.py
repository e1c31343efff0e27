"""Any history, cut into any batches, leaves the lake table with the rows of the source after each batch."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lake_history import History, Row, copied, source_id
from servers import Database, fresh_database
from wal2lake.config import Config
from wal2lake.demo.server import EmbeddedServer
from wal2lake.lake import Lake
from wal2lake.lake import key_pruning as nearby

SEEDS = range(int(os.environ.get("WAL2LAKE_TEST_HISTORIES", "1")))
BATCHES = 5
IDLE_ROWS = 100


@pytest.fixture(scope="module")
def place(
    server: EmbeddedServer, spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lake, Database, Path]]:
    path = tmp_path_factory.mktemp("random") / "lake"
    with fresh_database(server) as database:
        lake = Lake(Config(source={"dsn": database.dsn}, lake={"path": str(path)}), spark)
        lake.start()
        yield lake, database, path
        lake.stop()


def _row(rng: random.Random, key: int) -> Row:
    text = rng.choice([None, "", "x" * 3, f"text {rng.randrange(5)}"])
    return {
        "id": key,
        "part": rng.choice("ab"),
        "v": text,
        "w": rng.choice([None, b"", b"\x00"]),
        "n": rng.randrange(3),
    }


def _step(rng: random.Random, history: History) -> None:
    rows = [row for row in history.rows if row["id"] < 100]
    taken = {(row["id"], row["part"]) for row in rows}
    fresh = _row(rng, rng.randrange(12))
    free = not history.schema.key or (fresh["id"], fresh["part"]) not in taken
    kind = rng.choices(["insert", "update", "move", "delete", "truncate"], [4, 5, 4, 3, 0.15])[0]
    if kind == "truncate":
        history.truncate()
    elif (kind == "insert" or not rows) and free:
        history.insert(fresh)
    elif kind == "delete" and rows:
        history.delete(rng.choice(rows))
    elif rows:
        old = rng.choice(rows)
        new = {**old, "n": rng.randrange(3)}
        if kind == "move" and free:
            new |= {"id": fresh["id"], "part": fresh["part"]}
        unchanged = [name for name in ("v", "w") if rng.random() < 0.6]
        new |= {name: fresh[name] for name in ("v", "w") if name not in unchanged}
        history.update(old, new, unchanged if history.schema.key else ())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("key", ["keyed", "whole"])
def test_random_history(
    place: tuple[Lake, Database, Path], key: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, database, path = place
    monkeypatch.setattr(nearby, "LARGE", 20)
    rng = random.Random(f"{key} {seed}")
    name = f"r_{key}_{seed}"
    primary = ", PRIMARY KEY (id, part)" if key == "keyed" else ""
    database.execute(f"CREATE TABLE {name} (id int, part text, v text, w bytea, n int{primary})")
    database.execute(f"ALTER TABLE {name} REPLICA IDENTITY {'FULL' if key == 'whole' else 'DEFAULT'}")
    # Rows that nothing happens to: a small batch then meets a large table.
    idle: list[Row] = [{"id": i, "part": "a", "v": None, "w": None, "n": 0} for i in range(100, 100 + IDLE_ROWS)]
    database.execute(f"INSERT INTO {name} SELECT i, 'a', NULL, NULL, 0 FROM generate_series(100, {99 + IDLE_ROWS}) i")
    applied = copied(lake, database, name)
    history = History(applied.schema, path / "_wal2lake" / "segments", idle)
    history.lsn = applied.lsn + 100
    for number in range(1, BATCHES + 1):
        for _ in range(rng.choice([1, 3, 30, 60])):
            _step(rng, history)
        applied = lake.apply(applied, history.batch(number, files=rng.choice([1, 3])), source_id(applied.schema))
        history.assert_in(path)
        assert applied.rows == len(history.rows)
