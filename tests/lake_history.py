"""A table that changes in memory the way PostgreSQL's would, and the segments that its changes make.

Its rows are the expectation; the segments are what the lake gets to see. `read_lake` reads the result without Spark.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

from servers import Database
from wal2lake.change import Truncation
from wal2lake.changelog.manifest import Segment
from wal2lake.config import SourceConfig
from wal2lake.lake import Applied, Batch, Lake
from wal2lake.position import Lsn
from wal2lake.schema import TableId, TableSchema
from wal2lake.source.copies import copy_plan
from wal2lake.source.model import CopySource, ExportedSnapshot
from wal2lake.source.tables import catalog

Row = dict[str, Any]
_files = itertools.count(1)


def source_id(schema: TableSchema) -> str:
    return f"7000000000000000000/5/{schema.oid}"


def describe(database: Database, name: TableId) -> TableSchema:
    with database.connect() as connection:
        (oid,) = connection.execute(
            "SELECT c.oid::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE nspname = %s AND relname = %s",
            (name.schema, name.name),
        ).fetchone() or (0,)
        return catalog.describe(connection, [oid], bounds=catalog.KnownBounds())[oid]


def copy_source(database: Database, schema: TableSchema) -> CopySource:
    with database.connect() as connection:
        return copy_plan.copy_source(connection, SourceConfig(dsn=database.dsn), schema)


class Snapshot:
    """An exported snapshot, held open by a transaction until the block ends."""

    def __init__(self, database: Database) -> None:
        self._connection = psycopg.connect(database.dsn)

    def __enter__(self) -> ExportedSnapshot:
        self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        row = self._connection.execute("SELECT pg_export_snapshot(), pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return ExportedSnapshot(row[0], Lsn.parse(row[1]))

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def copied(
    lake: Lake,
    database: Database,
    name: str | TableId,
    manifest: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Applied:
    """Copy a table of the database as it is now."""
    schema = describe(database, TableId.parse(name) if isinstance(name, str) else name)
    source = copy_source(database, schema)
    with Snapshot(database) as snapshot:
        return lake.copy(source, snapshot, source_id(schema), manifest, progress or (lambda rows: None))


def read_lake(path: Path, table: TableId) -> list[Row]:
    reader = SqlCatalog("lake", uri=f"sqlite:///{path / 'catalog.db'}", warehouse=str(path))
    try:
        return list(reader.load_table((table.schema, table.name)).scan().to_arrow().to_pylist())
    finally:
        reader.engine.dispose()


def multiset(rows: Iterable[Mapping[str, Any]]) -> Counter[Any]:
    return Counter(tuple(sorted((name, _comparable(value)) for name, value in row.items())) for row in rows)


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, list):
        return ("list", tuple(_comparable(element) for element in value))
    return value


@dataclass
class History:
    """Changes of one table since its copy. One call is one transaction, unless it is made inside `with together()`."""

    schema: TableSchema
    directory: Path
    rows: list[Row] = field(default_factory=list)
    lsn: int = 1000
    seq: int = 0
    xid: int = 1
    """of the transactions that come next, 32 bits"""
    _changes: list[Row] = field(default_factory=list)
    _truncations: list[Truncation] = field(default_factory=list)

    def insert(self, row: Row, relation: int | None = None) -> None:
        self.rows.append(row)
        self._emit("I", row, relation=relation)

    def update(self, old: Row, new: Row, unchanged: Collection[str] = (), relation: int | None = None) -> None:
        """`unchanged`: columns whose value is left out, as PostgreSQL does with TOAST that an update did not touch."""
        assert all(old[name] == new[name] for name in unchanged)
        self.rows[self._index(old)] = new
        if not self.schema.key:
            self._emit("D", old, relation=relation, same_step=True)
            self._emit("I", new, relation=relation)
        else:
            moved = any(_comparable(old[name]) != _comparable(new[name]) for name in self.schema.key)
            self._emit("U", new, unchanged, old if moved else None, relation)

    def delete(self, row: Row, relation: int | None = None) -> None:
        del self.rows[self._index(row)]
        shown = row if not self.schema.key else {name: row[name] for name in self.schema.key}
        self._emit("D", shown, relation=relation)

    def truncate(
        self, relation: int | None = None, predicate: str | None = None, holds: Callable[[Row], bool] = lambda row: True
    ) -> None:
        self.rows = [row for row in self.rows if not holds(row)]
        self._next()
        columns = tuple((column.name, column.attnum) for column in self.schema.columns)
        self._truncations.append(Truncation(Lsn(self.lsn), self.seq, relation, predicate, self.xid, columns))

    def batch(self, manifest: int, *, files: int = 1, skip_before: Lsn | None = None) -> Batch:
        """The changes since the last batch."""
        changes, self._changes = self._changes, []
        truncations, self._truncations = tuple(self._truncations), []
        size = max(1, math.ceil(len(changes) / files))
        segments = tuple(self._segment(changes[at : at + size]) for at in range(0, len(changes), size))
        self.lsn += 10
        return Batch(Lsn(self.lsn), manifest, segments, truncations, skip_before)

    def assert_in(self, lake: Path) -> None:
        found, expected = multiset(read_lake(lake, self.schema.id)), multiset(self.rows)
        assert found == expected, f"too many: {list(found - expected)[:5]}, missing: {list(expected - found)[:5]}"

    def _index(self, row: Row) -> int:
        wanted = {name: _comparable(value) for name, value in row.items()}
        return next(
            i for i, one in enumerate(self.rows) if {name: _comparable(value) for name, value in one.items()} == wanted
        )

    def _next(self) -> None:
        # Several changes share a commit now and then, so that seq matters.
        self.seq += 1
        if self.seq % 3 == 0:
            self.lsn, self.seq = self.lsn + 8, 0

    def _emit(
        self, op: str, row: Row, unchanged: Collection[str] = (), old: Row | None = None, relation: int | None = None,
        same_step: bool = False,
    ) -> None:  # fmt: skip
        if not same_step:
            self._next()
        else:
            self.seq += 1
        meta, names = self.schema.meta, self.schema.names
        change: Row = {name: None if name in unchanged else row.get(name) for name in names}
        change |= {
            meta.op: op, meta.commit_lsn: self.lsn, meta.seq: self.seq, meta.xid: self.xid,
            meta.commit_ts: datetime(2024, 1, 1, tzinfo=UTC), meta.relation: relation,
            meta.unchanged: [names.index(name) for name in unchanged] or None, meta.key_changed: old is not None,
        }  # fmt: skip
        change |= {meta.old(name): old[name] if old is not None else None for name in self.schema.key}
        self._changes.append(change)

    def _segment(self, changes: list[Row]) -> tuple[str, Segment]:
        meta = self.schema.meta
        fields = [pa.field(column.name, column.lake.arrow) for column in self.schema.columns]
        fields += [
            pa.field(meta.op, pa.string()), pa.field(meta.commit_lsn, pa.int64()), pa.field(meta.seq, pa.int64()),
            pa.field(meta.commit_ts, pa.timestamp("us", tz="UTC")), pa.field(meta.xid, pa.int64()),
            pa.field(meta.unchanged, pa.list_(pa.int32())), pa.field(meta.relation, pa.int64()),
            pa.field(meta.key_changed, pa.bool_()),
        ]  # fmt: skip
        fields += [pa.field(meta.old(column.name), column.lake.arrow) for column in self.schema.key_columns]
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{next(_files)}.parquet"
        pq.write_table(pa.Table.from_pylist(changes, pa.schema(fields)), path)
        ops = Counter(change[meta.op] for change in changes)
        return str(path), Segment(
            path.name, len(changes), path.stat().st_size, 1, ops["I"], ops["U"], ops["D"],
            sum(change[meta.key_changed] for change in changes),
            sum(change[meta.unchanged] is not None for change in changes),
        )  # fmt: skip
