"""A table format in memory: versions of rows in Arrow, one after the other. Spark evaluates the statements.

It knows no files, so a table has a single data file, and nothing is left by interrupted work.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wal2lake.errors import CommitFailed
from wal2lake.evolution import changes
from wal2lake.lake.format import DataFile, FailureKind, Found, Merge, Record, Rewrite, Runtime
from wal2lake.lake.model import Facts
from wal2lake.lake.names import quoted
from wal2lake.position import LakeVersion, Lsn
from wal2lake.schema import TableId, TableSchema
from wal2lake.visibility import Visibility

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORD, _STAGE = "wal2lake.memory.record", "wal2lake.memory.stage"
_FILE, _POSITION = "_memory_file", "_memory_position"
_CLAUSE = re.compile(
    r"WHEN (NOT MATCHED BY SOURCE|NOT MATCHED|MATCHED)(?: AND (.*))? THEN (DELETE|UPDATE SET .*|INSERT \(.*\) VALUES .*)",
    re.DOTALL,
)
_NAME = r"`(?:[^`]|``)*`"
_lakes, _versions = itertools.count(1), itertools.count(1)


@dataclass(frozen=True)
class Version:
    rows: pa.Table
    record: Record | None
    """of this commit or of the newest one before it that has one"""
    parent: int | None
    number: int = field(default_factory=lambda: next(_versions))
    at: float = field(default_factory=time.time)


@dataclass
class Table:
    source: str
    schema: TableSchema
    location: str
    versions: list[Version]
    staged: dict[str, Version] = field(default_factory=dict)

    @property
    def current(self) -> Version:
        return self.versions[-1]


class MemoryTables:
    """Implements TableFormat."""

    name = "memory"
    runtime = Runtime()
    reserved_columns = frozenset({_FILE, _POSITION})
    row_address = (_FILE, _POSITION)

    def __init__(self) -> None:
        self._tables: dict[TableId, Table] = {}
        self._lake = next(_lakes)
        self._views: dict[TableId, str] = {}
        self._stages = itertools.count(1)

    # ---- the catalog

    def require_usable(self) -> None:
        pass

    def settings(self) -> Mapping[str, str]:
        return {}

    def sql_name(self, table: TableId) -> str:
        return f"global_temp.{self._view(table)}"

    def find(self, session: SparkSession, table: TableId) -> Found | None:
        return self.find_without_session(table)

    def find_without_session(self, table: TableId) -> Found | None:
        kept = self._tables.get(table)
        if kept is None:
            return None
        now = kept.current
        return Found(
            kept.source, kept.schema, now.record, now.rows.num_rows, kept.location, self._facts(kept), stages=True
        )

    def rename(self, session: SparkSession, table: TableId, new: TableId) -> None:
        if new in self._tables:
            raise ValueError(f"{new} exists")
        self._tables[new] = self._tables.pop(table)
        self._show(session, table)
        self._show(session, new)

    def drop(self, session: SparkSession, table: TableId) -> None:
        self._tables.pop(table, None)
        self._show(session, table)

    # ---- commits

    def commit_settings(self, record: Record, staged: str | None = None) -> Mapping[str, str]:
        settings = {_RECORD: _to_text(record)}
        return settings if staged is None else {**settings, _STAGE: staged}

    def create(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, location: str | None
    ) -> None:
        if schema.id in self._tables:
            raise ValueError(f"{schema.id} exists")
        version = Version(frame.toArrow(), _record(session), None)
        self._tables[schema.id] = Table(source, schema, location or f"memory:{schema.id}", [version])
        self._show(session, schema.id)

    def replace(
        self, session: SparkSession, frame: DataFrame, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        began, rows = self._kept(schema.id).current, frame.toArrow()
        self._require(schema.id, began.number, parent)
        kept = self._kept(schema.id)
        kept.source, kept.schema = source, schema
        kept.versions.append(Version(rows, _record(session), began.number))
        self._show(session, schema.id)

    def append(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:
        now = self._kept(table).current.rows
        added = frame.select(*map(quoted, now.column_names)).toArrow().cast(now.schema)
        self._commit(session, table, pa.concat_tables([now, added]))

    def overwrite(self, session: SparkSession, frame: DataFrame, table: TableId) -> None:
        now = self._kept(table).current.rows
        self._commit(session, table, frame.select(*map(quoted, now.column_names)).toArrow().cast(now.schema))

    def merge(self, session: SparkSession, table: TableId, merge: Merge) -> None:
        """A full join tells for each pair of rows which clause is the first that holds, and what it makes of them."""
        rows = self._kept(table).current.rows
        clauses = [found.groups() for found in map(_CLAUSE.fullmatch, merge.clauses) if found is not None]
        assert len(clauses) == len(merge.clauses)
        sides = {
            "MATCHED": "t.here AND s.here",
            "NOT MATCHED": "t.here IS NULL",
            "NOT MATCHED BY SOURCE": "s.here IS NULL",
        }
        clause = "CASE " + " ".join(
            f"WHEN {sides[side]} AND ({condition or 'true'}) THEN {n}" for n, (side, condition, _) in enumerate(clauses)
        )
        clause += " ELSE -1 END"
        chosen = [_values(action) for _, _, action in clauses]
        made = ", ".join(f"{_choice(clause, chosen, name)} AS c{n}" for n, name in enumerate(rows.column_names))
        pairs = session.sql(
            f"SELECT {clause} AS clause, t.{_POSITION} AS position, s.here AS matched, {made}"
            f" FROM (SELECT *, true AS here FROM {self.sql_name(table)}) t"
            f" FULL OUTER JOIN (SELECT *, true AS here FROM ({merge.source})) s ON {merge.on}"
        ).toArrow()
        found = pairs.select(["clause", "position", "matched"]).to_pylist()
        stored = [pair for pair in found if pair["position"] is not None]
        touched = [pair["position"] for pair in stored if pair["clause"] >= 0 or pair["matched"]]
        if len(touched) != len(set(touched)):
            raise ValueError("two rows of the query match one row of the table")
        kept = sorted(pair["position"] for pair in stored if pair["clause"] < 0)
        written = pairs.filter(pa.array([pair["clause"] >= 0 and bool(chosen[pair["clause"]]) for pair in found]))
        new = pa.table([written[f"c{n}"] for n in range(rows.num_columns)], names=rows.column_names)
        self._commit(session, table, pa.concat_tables([rows.take(pa.array(kept, pa.int64())), new.cast(rows.schema)]))

    def evolve(self, session: SparkSession, before: TableSchema, after: TableSchema, parent: Record | None) -> None:
        kept = self._kept(before.id)
        self._require(before.id, kept.current.number, parent)
        wanted, rows = changes(before, after), kept.current.rows
        names = {old.name: new.name for old, new in wanted.renamed}
        gone = {column.name for column in wanted.dropped}
        rows = rows.select([name for name in rows.column_names if name not in gone])
        rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
        for _, new in wanted.widened:
            place = rows.column_names.index(new.name)
            rows = rows.set_column(place, new.name, rows[new.name].cast(new.lake.arrow))
        for column in wanted.added:
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, column.lake.arrow))
        # Only the description changes: it is no version of the rows.
        kept.schema, kept.versions[-1] = after, replace(kept.current, rows=rows)
        self._show(session, before.id)

    def restate(self, session: SparkSession, table: TableId, record: Record, parent: Record | None) -> None:
        now = self._kept(table).current
        self._require(table, now.number, parent)
        self._kept(table).versions.append(Version(now.rows, record, now.number))
        self._show(session, table)

    def describe(
        self, session: SparkSession, table: TableId, schema: TableSchema, source: str, parent: Record | None
    ) -> None:
        kept = self._kept(table)
        self._require(table, kept.current.number, parent)
        kept.schema, kept.source = schema, source
        self._show(session, table)

    def note_record(self, session: SparkSession, table: TableId) -> None:
        pass

    # ---- staged commits

    def new_stage(self) -> str:
        return f"stage {self._lake} {next(self._stages)}"

    def stage(self, session: SparkSession, table: TableId, found: Found) -> None:
        pass

    def gained(self, session: SparkSession, table: TableId, staged: str) -> int:
        made = self._kept(table).staged.get(staged)
        return 0 if made is None else made.rows.num_rows - self._kept(table).current.rows.num_rows

    def publish(self, session: SparkSession, table: TableId, staged: str, parent: Record | None) -> Found:
        kept = self._tables.get(table)
        made = None if kept is None else kept.staged.get(staged)
        if kept is None or made is None:
            raise CommitFailed(table=str(table), cause="the staged version does not exist")
        self._require(table, made.parent, parent)
        kept.versions.append(made)
        self._show(session, table)
        found = self.find(session, table)
        assert found is not None
        return found

    # ---- files

    def new_location(self, table: TableId) -> str | None:
        return f"memory:{table}:{next(self._stages)}"

    def clean_up(
        self, session: SparkSession, location: str, table: TableId, source: str, since: float, free: bool
    ) -> None:
        pass

    def files(self, session: SparkSession, table: TableId) -> frozenset[str]:
        kept = self._tables.get(table)
        return frozenset() if kept is None else frozenset(f"{kept.location}/{one.number}" for one in kept.versions)

    # ---- compaction

    def facts(self, session: SparkSession, table: TableId) -> Facts:
        return self._facts(self._tables[table]) if table in self._tables else Facts()

    def data_files(self, session: SparkSession, table: TableId) -> Sequence[DataFile]:
        now = self._kept(table).current.rows
        return [DataFile(now.nbytes, now.num_rows, 0)] if now.num_rows else []

    def compact(
        self, session: SparkSession, table: TableId, rewrite: Rewrite | None, most: int, record: Record
    ) -> None:
        if rewrite is not None:
            self._commit(session, table, self._kept(table).current.rows.combine_chunks(), record)

    def expire(self, session: SparkSession, table: TableId, keep: int, before: float, record: Record) -> None:
        kept = self._kept(table)
        newest = max((n for n, one in enumerate(kept.versions) if one.record == record), default=-1)
        last = len(kept.versions) - keep
        kept.versions = [
            one for n, one in enumerate(kept.versions) if n >= last or n == newest or one.at >= before
        ]  # fmt: skip

    def remove_orphans(self, session: SparkSession, table: TableId, before: float) -> int:
        self._kept(table)
        return 0

    # ---- failures

    def failure_kind(self, causes: Sequence[str]) -> FailureKind | None:
        return None

    # ---- for tests

    def rows(self, table: TableId) -> list[dict[str, Any]]:
        """The rows of the current version."""
        found: list[dict[str, Any]] = self._kept(table).current.rows.to_pylist()
        return found

    def _kept(self, table: TableId) -> Table:
        return self._tables[table]

    def _facts(self, kept: Table) -> Facts:
        rows, times = kept.current.rows, [one.at for one in kept.versions]
        return Facts(
            data_files=1 if rows.num_rows else 0, records=rows.num_rows, size=rows.nbytes,
            snapshots=len(times), oldest=times[0], newest=times[-1],
        )  # fmt: skip

    def _require(self, table: TableId, version: int | None, parent: Record | None) -> None:
        """Raise CommitFailed unless a version is the current one and has this record."""
        now = self._kept(table).current
        if now.number != version or now.record != parent:
            raise CommitFailed(table=str(table), cause="another writer changed the table at the same time")

    def _commit(self, session: SparkSession, table: TableId, rows: pa.Table, record: Record | None = None) -> None:
        kept = self._kept(table)
        made = Version(rows, record or _record(session) or kept.current.record, kept.current.number)
        staged = session.conf.get(_STAGE, None)
        if staged is not None:
            kept.staged[staged] = made
            return
        kept.versions.append(made)
        self._show(session, table)

    def _view(self, table: TableId) -> str:
        return self._views.setdefault(table, f"wal2lake_{self._lake}_{len(self._views)}")

    def _show(self, session: SparkSession, table: TableId) -> None:
        """Make the current version readable in all sessions, with the addresses of its rows."""
        kept = self._tables.get(table)
        if kept is None:
            session.catalog.dropGlobalTempView(self._view(table))
            return
        rows, number = kept.current.rows, kept.current.number
        rows = rows.append_column(_FILE, pa.array([str(number)] * rows.num_rows, pa.string()))
        rows = rows.append_column(_POSITION, pa.array(range(rows.num_rows), pa.int64()))
        session.createDataFrame(rows).createOrReplaceGlobalTempView(self._view(table))


def _values(action: str) -> dict[str, str]:
    """The value of each column after an action; empty if it deletes the row."""
    if action == "DELETE":
        return {}
    if action.startswith("UPDATE SET "):
        pairs = re.findall(rf"t\.({_NAME}) = (s\.\w+)", action)
    else:
        names, _, values = action.removeprefix("INSERT (").rpartition(") VALUES (")
        pairs = list(zip(re.findall(_NAME, names), values.removesuffix(")").split(", "), strict=True))
    return {name[1:-1].replace("``", "`"): value for name, value in pairs}


def _choice(clause: str, chosen: Sequence[Mapping[str, str]], column: str) -> str:
    """The value of a column in the row that a clause writes."""
    whens = " ".join(f"WHEN {n} THEN {values[column]}" for n, values in enumerate(chosen) if values)
    return f"CASE {clause} {whens} END" if whens else "NULL"


def _record(session: SparkSession) -> Record | None:
    text = session.conf.get(_RECORD, None)
    if text is None:
        return None
    given = json.loads(text)
    seen = given["visibility"]
    return Record(
        Lsn(given["lsn"]), given["manifest"], given["changes"], LakeVersion(*given["version"]),
        Visibility.parse(seen) if seen else None,
    )  # fmt: skip


def _to_text(record: Record) -> str:
    version = tuple(asdict(record.version).values())
    seen = str(record.visibility) if record.visibility is not None else None
    return json.dumps(
        {"lsn": int(record.lsn), "manifest": record.manifest, "changes": record.changes, "version": version,
         "visibility": seen}
    )  # fmt: skip
