"""Any history, cut into any batches, leaves the lake table with the rows of the source after each batch.

The reference in memory is given the same histories, and must come to the same rows and the same records.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lake_history import History, Row, Snapshot, copy_source, describe, multiset, read_lake, source_id
from servers import Database, fresh_database
from simulation.memory_lake import MemoryLake
from wal2lake.config import Config
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import CommitFailed
from wal2lake.lake import Applied, Batch, Exchange, Lake, LakeTables, of_partitions
from wal2lake.lake.applying import key_pruning as nearby
from wal2lake.lake.applying.partition import within
from wal2lake.position import Lsn
from wal2lake.schema import Bounds, Column, TableId, TableSchema
from wal2lake.source.model import CopySource, ExportedSnapshot
from wal2lake.types import LakeType
from wal2lake.visibility import PgSnapshot, Visibility

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


@dataclass(frozen=True)
class Shape:
    """What kind of table a history is of."""

    leaves: dict[str, int]
    """oids of its partitions, by the value that their rows have in common; none if it is a plain table"""

    def leaf(self, row: Row) -> int | None:
        return self.leaves.get(row["part"])


def _step(rng: random.Random, history: History, shape: Shape) -> None:
    rows = [row for row in history.rows if row["id"] < 100]
    taken = {(row["id"], row["part"]) for row in rows}
    fresh = _row(rng, rng.randrange(12))
    fresh |= {column.name: rng.choice([None, 8]) for column in history.schema.columns[len(fresh) :]}
    free = not history.schema.key or (fresh["id"], fresh["part"]) not in taken
    kind = rng.choices(["insert", "update", "move", "delete", "truncate"], [4, 5, 4, 3, 0.15])[0]
    if kind == "truncate":
        _truncate(rng, history, shape)
    elif (kind == "insert" or not rows) and free:
        history.insert(fresh, shape.leaf(fresh))
    elif kind == "delete" and rows:
        old = rng.choice(rows)
        history.delete(old, shape.leaf(old))
    elif rows:
        old = rng.choice(rows)
        new = {**old, "n": rng.randrange(3)}
        if kind == "move" and free:
            new |= {"id": fresh["id"], "part": fresh["part"]}
        unchanged = [name for name in ("v", "w") if rng.random() < 0.6]
        new |= {name: fresh[name] for name in ("v", "w") if name not in unchanged}
        if shape.leaf(old) != shape.leaf(new):
            # PostgreSQL deletes from one partition and inserts into the other.
            history.delete(old, shape.leaf(old))
            history.insert(new, shape.leaf(new))
        else:
            history.update(old, new, unchanged if history.schema.key else (), shape.leaf(new))


def _truncate(rng: random.Random, history: History, shape: Shape) -> None:
    part = rng.choice([None, *shape.leaves]) if shape.leaves else None
    if part is None:
        history.truncate()
    else:
        predicate = f"((part IS NOT NULL) AND (part = '{part}'::text))"
        history.truncate(shape.leaves[part], predicate, lambda row: bool(row["part"] == part))


class Both:
    """The lake and the reference, which do the same and must come to the same."""

    def __init__(self, lake: Lake, database: Database, path: Path) -> None:
        def rows(source: CopySource, _: ExportedSnapshot) -> Iterator[Row]:
            names = ", ".join(source.schema.names)
            with database.connect() as connection:
                for heap in source.heaps:
                    for row in connection.execute(f"SELECT {names} FROM {heap.sql_name}").fetchall():
                        yield dict(zip(source.schema.names, row, strict=True))

        self._path, self._memory = path, MemoryLake(rows)
        self._memory.start()
        self._lakes: tuple[LakeTables, LakeTables] = (lake, self._memory)

    def copy(self, database: Database, name: str, visibility: Visibility | None = None) -> Applied:
        schema = describe(database, TableId("public", name))
        with Snapshot(database) as taken:
            snapshot = replace(taken, visibility=visibility)
            source = copy_source(database, schema)
            return self._same([
                lake.copy(source, snapshot, source_id(schema), 0, lambda _: None) for lake in self._lakes
            ])  # fmt: skip

    def apply(self, applied: Applied, batch: Batch) -> Applied:
        return self._same([lake.apply(applied, batch, source_id(applied.schema)) for lake in self._lakes])

    def restate(self, applied: Applied) -> Applied:
        return self._same([lake.restate(applied, source_id(applied.schema)) for lake in self._lakes])

    def refuse(self, applied: Applied, batch: Batch, epoch: int = 0) -> None:
        for lake in self._lakes:
            with pytest.raises(CommitFailed):
                lake.apply(applied, batch, source_id(applied.schema), epoch)

    def exchange(self, applied: Applied, source: CopySource, snapshot: ExportedSnapshot, what: Exchange) -> Applied:
        schema = applied.schema
        return self._same([
            lake.exchange(applied, source, snapshot, what, schema, source_id(schema)) for lake in self._lakes
        ])  # fmt: skip

    def _same(self, answers: list[Applied]) -> Applied:
        (found, expected), table = answers, answers[0].schema.id
        assert (found, found.version) == (expected, expected.version)
        assert multiset(read_lake(self._path, table)) == multiset(self._memory.rows(table))
        return found


def _table(database: Database, name: str, kind: str) -> None:
    primary = "" if kind == "whole" else ", PRIMARY KEY (id, part)"
    parted = " PARTITION BY LIST (part)" if kind == "parted" else ""
    database.execute(f"CREATE TABLE {name} (id int, part text, v text, w bytea, n int{primary}){parted}")
    if parted:
        for part in "ab":
            database.execute(f"CREATE TABLE {name}_{part} PARTITION OF {name} FOR VALUES IN ('{part}')")
    database.execute(f"ALTER TABLE {name} REPLICA IDENTITY {'FULL' if kind == 'whole' else 'DEFAULT'}")
    # Rows that nothing happens to: a small batch then meets a large table.
    database.execute(f"INSERT INTO {name} SELECT i, 'a', NULL, NULL, 0 FROM generate_series(100, {99 + IDLE_ROWS}) i")


def _shape(database: Database, schema: TableSchema) -> Shape:
    if not schema.partitioned:
        return Shape({})
    name = schema.id.name
    return Shape({part: describe(database, TableId("public", f"{name}_{part}")).oid for part in "ab"})


def _wider(schema: TableSchema, missing: str | None) -> TableSchema:
    number = max(column.attnum for column in schema.columns) + 1
    added = Column(f"added_{number}", 23, -1, "integer", LakeType.parse("int"), attnum=number, missing=missing)
    return replace(schema, columns=(*schema.columns, added))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["keyed", "whole", "parted"])
def test_random_history(
    place: tuple[Lake, Database, Path], kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, database, path = place
    monkeypatch.setattr(nearby, "LARGE", 20)
    rng = random.Random(f"{kind} {seed}")
    name = f"r_{kind}_{seed}"
    _table(database, name, kind)
    both = Both(lake, database, path)
    applied = both.copy(database, name)
    idle: list[Row] = [{"id": i, "part": "a", "v": None, "w": None, "n": 0} for i in range(100, 100 + IDLE_ROWS)]
    history = History(applied.schema, path / "_wal2lake" / "segments", idle)
    history.lsn = applied.lsn + 100
    shape, widened = _shape(database, applied.schema), rng.sample(range(2, BATCHES + 1), 2)
    for number in range(1, BATCHES + 1):
        for _ in range(rng.choice([1, 3, 30, 60])):
            _step(rng, history, shape)
        batch = history.batch(number, files=rng.choice([1, 3]))
        if number in widened:
            missing = rng.choice([None, "7"])
            wider = _wider(applied.schema, missing)
            batch = replace(batch, schema=wider, written={1: applied.schema})
            default = {wider.names[-1]: None if missing is None else int(missing)}
            history.schema, history.rows = wider, [{**row, **default} for row in history.rows]
        before, applied = applied, both.apply(applied, batch)
        history.assert_in(path)
        assert applied.rows == len(history.rows)
        if number not in widened:
            assert both.apply(before, batch) == applied
    before, applied = applied, both.restate(applied)
    _step(rng, history, shape)
    batch = history.batch(BATCHES + 1)
    both.refuse(before, batch)
    both.apply(applied, batch)
    history.assert_in(path)


@pytest.mark.parametrize("kind", ["keyed", "whole"])
def test_what_the_snapshot_of_a_copy_sees_is_not_applied_again(place: tuple[Lake, Database, Path], kind: str) -> None:
    """Transactions that the snapshot sees and others take turns in the stream, from one epoch of numbers to the next."""
    lake, database, path = place
    name, epoch = f"seen_{kind}", 2**32
    _table(database, name, kind)
    database.execute(f"INSERT INTO {name} SELECT i, 'b', NULL, NULL, 1 FROM generate_series(0, 9) i")
    both = Both(lake, database, path)
    rows: list[Row] = [{"id": i, "part": "a", "v": None, "w": None, "n": 0} for i in range(100, 100 + IDLE_ROWS)]
    history = History(describe(database, TableId("public", name)), path / "_wal2lake" / "segments", rows)
    with database.connect() as connection:
        ((history.lsn,),) = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchall()
    history.lsn = int(history.lsn) + 10_000
    snapshot = PgSnapshot(epoch - 9, epoch + 12, frozenset({epoch - 2, epoch + 3}))
    visibility = Visibility(snapshot, Lsn(history.lsn + 10_000))
    applied = both.copy(database, name, visibility)
    assert applied.visibility == visibility
    for number in (1, 2):
        for i in range(5):
            # The copy has these rows.
            history.xid = (epoch - 10, epoch - 9, epoch - 1, 0, 11)[i]
            history.insert({"id": 5 * (number - 1) + i, "part": "b", "v": None, "w": None, "n": 1})
            history.xid = (epoch - 2, 3, 12, 13, 2**31)[i]
            old = next(row for row in history.rows if row["id"] == 100 + 10 * number + i)
            history.update(old, {**old, "n": 7 + i})
        batch = replace(history.batch(number), visibility=applied.visibility)
        before, applied = applied, both.apply(applied, batch)
        assert applied.visibility == visibility
        assert both.apply(before, batch) == applied
    history.assert_in(path)
    # A commit at the same transactions' numbers, an age later.
    history.lsn, history.xid = visibility.until + 10, (epoch - 1) % epoch
    history.delete(history.rows[0])
    applied = both.apply(applied, replace(history.batch(3), visibility=applied.visibility))
    assert applied.visibility is None
    history.assert_in(path)


def test_a_partition_is_exchanged_as_in_the_reference(place: tuple[Lake, Database, Path]) -> None:
    lake, database, path = place
    _table(database, "exchanged", "parted")
    database.execute("INSERT INTO exchanged VALUES (1, 'b', 'old', NULL, 0), (2, 'b', NULL, '\\x00', 1)")
    both = Both(lake, database, path)
    applied = both.copy(database, "exchanged")
    database.execute("UPDATE exchanged SET v = 'new' WHERE id = 1; DELETE FROM exchanged WHERE id = 2")
    described, leaf = describe(database, applied.schema.id), _shape(database, applied.schema).leaves["b"]
    bounds = Bounds("((part IS NOT NULL) AND (part = 'b'::text))", (("part", described.column("part").attnum),))
    (changed,) = [replace(heap, bounds=bounds) for heap in described.heaps if heap.oid == leaf]
    what = Exchange((changed,), (within(bounds, described),), frozenset({leaf}))
    with Snapshot(database) as snapshot:
        source = copy_source(database, of_partitions(described, what))
        applied = both.exchange(applied, source, snapshot, what)
    assert applied.rows == IDLE_ROWS + 1
