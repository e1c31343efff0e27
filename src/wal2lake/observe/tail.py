"""The changes of a mirror as they come, read from the change log: no Spark, and nothing asked of the source.

What a manifest holds is told in the order of (commit LSN, seq) over all its tables. Manifests that were applied and
retired before they could be read are counted and told as a gap, never passed over.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ..changelog import ChangeLog, Segment, TableCut, verify
from ..errors import ChangeLogDamaged
from ..position import Lsn
from ..schema import Identity, TableId, TableSchema

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
_ROWS_AT_ONCE = 1000
_OPERATIONS = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}


@dataclass(frozen=True)
class Change:
    """One change of one table, as it is committed."""

    table: str
    operation: str
    """INSERT, UPDATE, DELETE or TRUNCATE"""
    commit_lsn: Lsn
    seq: int
    xid: int | None
    commit_ts: datetime | None
    row: dict[str, Any] | None
    """the values; of a deleted row those that the replica identity holds"""
    old_key: dict[str, Any] | None = None
    """the key before, where it changed"""
    unchanged: tuple[str, ...] = ()
    """columns that PostgreSQL did not send, because a large value stayed as it was"""

    @property
    def event(self) -> str:
        return f"{self.table}.{self.operation}"

    def to_json(self) -> dict[str, Any]:
        return {
            "event": self.event, "table": self.table, "op": self.operation, "commit_lsn": str(self.commit_lsn),
            "seq": self.seq, "xid": self.xid,
            "commit_ts": self.commit_ts.isoformat() if self.commit_ts is not None else None,
            "row": _plain(self.row), "old_key": _plain(self.old_key), "unchanged": list(self.unchanged),
        }  # fmt: skip


def tail(
    logs: Sequence[ChangeLog], tables: frozenset[TableId] | None, lines: int, stop: threading.Event | None
) -> Iterator[Change]:
    """The last `lines` changes that the logs still hold, then each new one until `stop`; without it no new ones."""
    # What is new is counted from here on, not from when the first change is asked for.
    return _told([_Follower(log, tables) for log in logs], lines, stop)


def _told(followers: Sequence[_Follower], lines: int, stop: threading.Event | None) -> Iterator[Change]:
    last = heapq.merge(*(follower.last(lines) for follower in followers), key=_place)
    yield from deque(last, maxlen=lines)
    while stop is not None and not stop.is_set():
        for follower in followers:
            yield from follower.new()
        stop.wait(LOOK_SECONDS)


class _Follower:
    """Reads one group's log from where it stands."""

    def __init__(self, changelog: ChangeLog, tables: frozenset[TableId] | None) -> None:
        self._log, self._tables = changelog, tables
        self._seen: int | None = None
        self._look()

    def _look(self) -> int | None:
        """The newest manifest's number; None as long as the group has no log."""
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
            log.warning("changes of manifest %d are not shown: it was applied and removed before", number)

    def _wanted(self, cut: TableCut) -> bool:
        return self._tables is None or TableId.parse(cut.name) in self._tables

    def _parts(self, cut: TableCut) -> Iterator[Iterator[Change]]:
        for segment in cut.segments:
            yield self._rows(cut, segment)
        yield iter(
            [Change(cut.name, "TRUNCATE", each.commit_lsn, each.seq, None, None, None) for each in cut.truncations]
        )

    def _rows(self, cut: TableCut, segment: Segment) -> Iterator[Change]:
        import pyarrow.parquet as pq

        verify(self._log.path(segment), segment.sha256)
        schema = self._log.schema(cut.oid, segment.schema)
        change = _reader(schema, cut.name)
        with pq.ParquetFile(self._log.path(segment)) as file:
            rows = (row for batch in file.iter_batches(_ROWS_AT_ONCE) for row in batch.to_pylist())
            changes = map(change, rows)
            yield from changes if schema.key else _with_updates(changes, schema)


def _with_updates(changes: Iterator[Change], schema: TableSchema) -> Iterator[Change]:
    """Updates of rows that are told apart as a whole are in the log as a delete and an insert, one step after it."""
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
    known_of_deleted = names if schema.identity is Identity.FULL else schema.key

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
    """A value as JSON has it: exact numbers and moments as text, bytes the way PostgreSQL writes them."""
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
