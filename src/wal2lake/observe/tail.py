"""Live changes, read from the change log: no Spark, and no query on the source.

The changes of a manifest come in the order of (commit LSN, seq) over all tables. Manifests that were deleted
before they could be read are counted and reported as a gap.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ..changelog import ChangeLog, ManifestEntry, Segment
from ..errors import ChangeLogDamaged
from ..executor import Event
from ..position import Lsn
from ..schema import ReplicaIdentity, TableId, TableSchema

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
_ROWS_AT_ONCE = 1000
_OPERATIONS = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}


@dataclass(frozen=True)
class Change:
    """One committed change of one table."""

    table: str
    operation: str
    """INSERT, UPDATE, DELETE, TRUNCATE or REFUSED"""
    commit_lsn: Lsn
    seq: int
    xid: int | None
    commit_ts: datetime | None
    row: dict[str, Any] | None
    """the values; of a deleted row those of the replica identity"""
    old_key: dict[str, Any] | None = None
    """the old key, if it changed"""
    unchanged: tuple[str, ...] = ()
    """columns that PostgreSQL did not send because a large value (TOAST) did not change"""
    error: str | None = None
    """of REFUSED: why the change could not be carried"""

    @property
    def event(self) -> str:
        return f"{self.table}.{self.operation}"

    def to_json(self) -> dict[str, Any]:
        return {
            "event": self.event, "table": self.table, "op": self.operation, "commit_lsn": str(self.commit_lsn),
            "seq": self.seq, "xid": self.xid,
            "commit_ts": self.commit_ts.isoformat() if self.commit_ts is not None else None,
            "row": _plain(self.row), "old_key": _plain(self.old_key), "unchanged": list(self.unchanged),
            **({} if self.error is None else {"error": self.error}),
        }  # fmt: skip


def captured_changes(
    logs: Sequence[ChangeLog], tables: frozenset[TableId] | None, lines: int, stop: Event | None
) -> Iterator[Change]:
    """The last `lines` changes in the logs, then each new one until `stop`; without `stop`, no new ones."""
    # New changes are counted from this call on, not from the first iteration.
    return _told([_Follower(log, tables) for log in logs], lines, stop)


def _told(followers: Sequence[_Follower], lines: int, stop: Event | None) -> Iterator[Change]:
    last = heapq.merge(*(follower.last(lines) for follower in followers), key=_place)
    yield from deque(last, maxlen=lines)
    while stop is not None and not stop.is_set():
        for follower in followers:
            yield from follower.new()
        stop.wait(LOOK_SECONDS)


class _Follower:
    """Reads one group's log from a manifest on."""

    def __init__(self, changelog: ChangeLog, tables: frozenset[TableId] | None) -> None:
        self._log, self._tables = changelog, tables
        self._seen: int | None = None
        self._look()

    def _look(self) -> int | None:
        """The number of the newest manifest; None if the group has no log."""
        if not self._log.started:
            return None
        last = self._log.last()
        newest = last.number if last is not None else self._log.stretch.manifest - 1
        if self._seen is None:
            self._seen = newest
        return newest

    def last(self, lines: int) -> list[Change]:
        if self._seen is None or lines == 0:
            return []
        found: deque[Change] = deque()
        for number in range(self._seen, self._log.oldest() - 1, -1):
            of_manifest = deque(self._changes(number), maxlen=lines)
            found.extendleft(reversed(of_manifest))
            if len(found) >= lines:
                break
        return list(found)[-lines:]

    def new(self) -> Iterator[Change]:
        newest = self._look()
        if newest is None or self._seen is None:
            return
        while self._seen < newest:
            self._seen += 1
            yield from self._changes(self._seen)

    def _changes(self, number: int) -> Iterator[Change]:
        try:
            manifest = self._log.read(number)
            cuts = [cut for cut in manifest.tables.values() if self._wanted(cut)]
            yield from heapq.merge(*(part for cut in cuts for part in self._parts(cut)), key=_place)
        except (ChangeLogDamaged, FileNotFoundError):
            if number >= self._log.oldest():
                raise
            log.warning("changes of manifest %d are not shown: it was applied and deleted before", number)

    def _wanted(self, cut: ManifestEntry) -> bool:
        return self._tables is None or TableId.parse(cut.name) in self._tables

    def _parts(self, cut: ManifestEntry) -> Iterator[Iterator[Change]]:
        for segment in cut.segments:
            yield self._rows(cut, segment)
        yield iter(
            [Change(cut.name, "TRUNCATE", each.commit_lsn, each.seq, None, None, None) for each in cut.truncations]
        )

    def _rows(self, cut: ManifestEntry, segment: Segment) -> Iterator[Change]:
        import pyarrow.parquet as pq

        self._log.verify(segment)
        schema = self._log.schema(cut.oid, segment.schema)
        change = _reader(schema, cut.name)
        with self._log.open(segment) as opened, pq.ParquetFile(opened) as file:
            rows = (row for batch in file.iter_batches(_ROWS_AT_ONCE) for row in batch.to_pylist())
            changes = map(change, rows)
            yield from changes if schema.key else _with_updates(changes, schema)


def _with_updates(changes: Iterator[Change], schema: TableSchema) -> Iterator[Change]:
    """Updates of rows without a key are in the log as a delete and an insert with the next seq; join them again."""
    named = [column.name for column in schema.naming_columns]
    held: Change | None = None
    for change in changes:
        halves = held is not None and (change.commit_lsn, change.seq) == (held.commit_lsn, held.seq + 1)
        if held is not None and not halves:
            yield held
        if held is not None and halves and held.row is not None and change.row is not None:
            before, after = ({name: row[name] for name in named} for row in (held.row, change.row))
            yield replace(held, operation="UPDATE", row=change.row, old_key=before if before != after else None)
            held = None
        elif change.operation == "DELETE":
            held = change
        else:
            held = None
            yield change
    if held is not None:
        yield held


def _reader(schema: TableSchema, table: str) -> Callable[[dict[str, Any]], Change]:
    meta, names = schema.meta, schema.names
    known_of_deleted = names if schema.identity is ReplicaIdentity.FULL else schema.key

    def read(values: dict[str, Any]) -> Change:
        operation = values[meta.op]
        unchanged = tuple(names[position] for position in values[meta.unchanged] or ())
        held = known_of_deleted if operation == "D" else [name for name in names if name not in unchanged]
        old = {name: values[meta.old(name)] for name in schema.key} if values[meta.key_changed] else None
        return Change(
            table, _OPERATIONS[operation], Lsn(values[meta.commit_lsn]), values[meta.seq], values[meta.xid],
            values[meta.commit_ts], {name: values[name] for name in held}, old, unchanged,
        )  # fmt: skip

    return read


def _place(change: Change) -> tuple[int, int]:
    return change.commit_lsn, change.seq


def _plain(value: Any) -> Any:
    """A value for JSON: exact numbers and times as text, bytes in PostgreSQL's hex form."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_scalar(part) for part in value] if isinstance(value, list) else _scalar(value)


def _scalar(value: Any) -> Any:
    match value:
        case bytes():
            return "\\x" + value.hex()
        case Decimal():
            return str(value)
        case date():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return value
