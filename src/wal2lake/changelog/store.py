"""The change log of one group: captured changes, durable and in order.

    <group>/
      group.json             its database and slot, and the starts of its stretches
      append.json            position from which the stream has the publication of append-only tables
      acknowledged.json      the highest position that may have been acknowledged to the source
      stored.json, timeline.json     what the source must know, see `witness`
      manifests/<n>.json     one per flush, n contiguous
      segments/<oid>/*.parquet
      schemas/<oid>/<v>.json     see `schemas`

A file appears under its name complete and durable, or not at all; a manifest is immutable. A file that no manifest
names is an orphan file. One process writes (it holds the log), any number read. `storage` says where files are and what
readers see.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO

from ..errors import ChangeLogDamaged, GroupHeld, SourceReplaced
from ..position import Lsn
from ..schema import TableSchema
from ..visibility import Visibility
from .checksum import verify
from .leaves import Leaves
from .manifest import Manifest, ManifestEntry, Segment
from .origin import GroupFile, Identity, Origin, Start
from .parquet import read_columns
from .schemas import PREFIX as SCHEMAS
from .schemas import Schemas
from .storage import AlreadyHeld, LogStorage
from .witness import Witness

if TYPE_CHECKING:
    import pyarrow as pa

MANIFESTS = "manifests"
SEGMENTS = "segments"
_ACKNOWLEDGED = "acknowledged.json"
_APPEND = "append.json"
_NUMBERED = re.compile(rf"{MANIFESTS}/([0-9]+)\.json")
_CACHED_MANIFESTS = 512


class ChangeLog:
    """Reads and writes the log of a group. Only the process that holds it may call methods that write."""

    def __init__(self, logs: LogStorage, group: str) -> None:
        self.group = group
        self._logs = logs
        self.storage = logs.within(group)
        """the part that belongs to this group"""
        self._cache: OrderedDict[int, Manifest] = OrderedDict()
        self._weights: dict[int, int] = {}
        """bytes of each manifest, from the sweep at the start"""
        self._last = self._oldest = 0
        self._unneeded: list[str] = []
        """segments whose manifest is deleted, and that are still to be"""
        self._group_file = GroupFile(self.storage, group)
        self.schemas = Schemas(self.storage)
        self.leaves = Leaves(self.storage)

    def reopened(self) -> ChangeLog:
        """The same log for another thread, with its own caches."""
        return ChangeLog(self._logs, self.group)

    def create(self, identity: Identity, slot: str) -> None:
        """Create the log, for a slot that is about to be created. An existing log keeps its contents."""
        self.storage.prepare(MANIFESTS, SEGMENTS, SCHEMAS)
        origin = Origin(identity.system_identifier, identity.database_oid, slot)
        self._group_file.write(origin, self.starts if self.exists else [])

    def begin(self, lsn: Lsn, appends: bool = False, damaged: bool = False, token: str | None = None) -> None:
        """Start a stretch at a position: numbers continue, but no table may be applied across the gap before it.

        `damaged`: what was captured before can't be read, and is deleted.
        """
        numbers = self._numbers()
        first = max([*numbers, *(stretch.manifest - 1 for stretch in self.starts)], default=0) + 1
        kept = [stretch for stretch in self.starts if stretch.manifest < first]
        self.storage.delete(_ACKNOWLEDGED)
        self.witness.forget()
        self.storage.delete(_APPEND)
        if appends:
            self.append_from(lsn)
        self._group_file.write(self.origin, [*kept, Start(first, lsn, token)])
        if damaged:
            for number in numbers:
                self.storage.delete(_manifest(number))
            self._cache.clear()
            self._last = self._oldest = 0
            self.schemas.set_aside_damaged()
        if first > 1:
            # LSNs of a restored database can't be compared with older ones: numbers separate the stretches.
            self.publish(lsn, 0, None, {}, token)

    def cross(self, crossing: Visibility) -> None:
        """From here on the slot's stream counts, of which triggers have captured what `crossing` sees."""
        self._group_file.cross(crossing)

    @property
    def witness(self) -> Witness:
        return Witness(self.storage)

    @property
    def exists(self) -> bool:
        return self._group_file.exists

    @property
    def started(self) -> bool:
        """Whether there is a position to stream from."""
        return self.exists and bool(self.starts)

    @property
    def by_triggers(self) -> bool:
        """Whether what it holds last was captured by triggers."""
        return self.started and self.stretch.by_triggers

    def remove(self) -> None:
        """Delete the whole log."""
        self.storage.remove()
        self._cache.clear()
        self._group_file.forget()
        self.schemas.forget()
        self._last = self._oldest = 0

    @property
    def origin(self) -> Origin:
        return self._group_file.origin()

    def must_be_from(self, identity: Identity) -> None:
        """Refuse a database other than the one the log was captured from."""
        origin = self.origin
        if (origin.system_identifier, origin.database_oid) != (identity.system_identifier, identity.database_oid):
            cause = f"system identifier {origin.system_identifier}, database oid {origin.database_oid}"
            raise SourceReplaced(group=self.group, cause=cause)

    @property
    def starts(self) -> list[Start]:
        """The starts of all stretches, oldest first."""
        return self._group_file.starts()

    @property
    def stretch(self) -> Start:
        """The start of the stretch that is being written."""
        starts = self.starts
        if not starts:
            raise self._damaged("it has no start: the slot was never created")
        return starts[-1]

    def oldest(self) -> int:
        """Number of the oldest manifest, or of the next one if there is none."""
        return min(self._numbers(), default=self.stretch.manifest)

    def position(self) -> Lsn:
        """Every change that committed below this, and after the start, is in a manifest."""
        last, start = self.last(), self.stretch
        return last.to_lsn if last is not None and last.number >= start.manifest else start.lsn

    def token(self) -> str | None:
        """What a stream resumes from at the position, where that alone does not say it."""
        last, start = self.last(), self.stretch
        return last.token if last is not None and last.number >= start.manifest else start.token

    def acknowledged(self) -> Lsn:
        """The highest position that may have been acknowledged; a slot beyond it was moved by another program."""
        position = self.position()
        data = self.storage.get(_ACKNOWLEDGED)
        try:
            return max(position, Lsn.parse(json.loads(data)["lsn"])) if data is not None else position
        except (ValueError, KeyError, TypeError):
            raise self._damaged("acknowledged.json can't be read") from None

    def append_from(self, lsn: Lsn) -> None:
        """The publication of append-only tables exists; a stream from this position on can use it."""
        self.storage.put(_APPEND, json.dumps({"lsn": str(lsn)}).encode())

    def appends_since(self) -> Lsn | None:
        """The position from which a stream can use the publication of append-only tables; None: there is none."""
        data = self.storage.get(_APPEND)
        try:
            return None if data is None else Lsn.parse(json.loads(data)["lsn"])
        except (ValueError, KeyError, TypeError):
            # Treated as missing: it is written again, and the tables are re-copied.
            return None

    def record_acknowledged(self, lsn: Lsn) -> None:
        """Record a position beyond the last manifest; must be durable before it is acknowledged."""
        self.storage.put(_ACKNOWLEDGED, json.dumps({"lsn": str(lsn)}).encode())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the group's log for writing; released when the process ends in any way."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.storage.held())
            except AlreadyHeld as error:
                raise GroupHeld(group=self.group, holder=error.holder) from None
            yield

    def publish(
        self, to_lsn: Lsn, transactions: int, commit_ts: datetime | None, tables: Mapping[int, ManifestEntry],
        token: str | None = None,
    ) -> Manifest:  # fmt: skip
        """Append a manifest. Its segments must be durable; when this returns, so is the manifest."""
        last = self.last()
        number = last.number + 1 if last is not None else self.stretch.manifest
        manifest = Manifest(number, self.position(), to_lsn, transactions, commit_ts, tables, token)
        if manifest.to_lsn < manifest.from_lsn:
            raise self._damaged(f"manifest {number} would end at {to_lsn}, before its start {manifest.from_lsn}")
        try:
            self.storage.put_new(_manifest(number), manifest.to_json().encode())
        except FileExistsError:
            raise self._damaged(f"manifest {number} was written by another process") from None
        self._remember(manifest)
        self._last = number
        return manifest

    def last(self) -> Manifest | None:
        """The newest manifest; None if there is none yet."""
        number = self._last or max(self._numbers(), default=0)
        if number == 0:
            return None
        while self.has(number + 1):
            number += 1
        self._last = number
        return self.read(number)

    def has(self, number: int) -> bool:
        """Whether a manifest exists, at the cost of one request."""
        return self.storage.stat(_manifest(number)) is not None

    def weights(self) -> list[tuple[int, int]]:
        """Number and bytes of each manifest, oldest first."""
        found = []
        for number in sorted(self._numbers()):
            weight = self._weights.get(number)
            if weight is None and (manifest := self._read_if_kept(number)) is not None:
                weight = manifest.bytes
            if weight is not None:
                found.append((number, weight))
        self._weights.clear()
        return found

    def read(self, number: int) -> Manifest:
        if (manifest := self._cache.get(number)) is not None:
            return manifest
        data = self.storage.get(_manifest(number))
        if data is None:
            raise self._damaged(f"manifest {number} is missing")
        try:
            manifest = Manifest.from_json(data.decode())
        except (ValueError, KeyError, TypeError):
            path = self.storage.uri(_manifest(number))
            raise ChangeLogDamaged(group=self.group, path=path, cause="it is not what was written") from None
        if manifest.number != number:
            raise self._damaged(f"manifest {number} says that it is {manifest.number}")
        self._remember(manifest)
        return manifest

    def after(self, number: int, most: int | None = None) -> list[Manifest]:
        """Manifests above `number` in order, each continuing the one before; at most `most`.

        Raises if some of them were retired.
        """
        last = self.last()
        if last is None or last.number <= number:
            return []
        end = last.number if most is None else min(last.number, number + most)
        manifests = [self.read(n) for n in range(number + 1, end + 1)]
        self._check_joints(manifests)
        return manifests

    def _check_joints(self, manifests: list[Manifest]) -> None:
        starts = {start.manifest: start.lsn for start in self.starts}
        for before, manifest in pairwise(manifests):
            expected = starts.get(manifest.number, before.to_lsn)
            if manifest.from_lsn != expected:
                raise self._damaged(f"manifest {manifest.number} begins at {manifest.from_lsn}, not at {expected}")

    def uri(self, segment: Segment) -> str:
        """Where a segment is, for Spark and other readers of Parquet."""
        return self.storage.uri(segment.file)

    def open(self, segment: Segment) -> BinaryIO:
        """The file of a segment. FileNotFoundError if it was retired."""
        return self.storage.open(segment.file)

    def verify(self, segment: Segment) -> None:
        """Raises ChangeLogDamaged if a segment differs from what was written."""
        verify(self.storage, segment.file, segment.sha256)

    def schema(self, oid: int, version: int) -> TableSchema:
        """The schema version that a segment names."""
        schema = self.schemas.get(oid, version)
        if schema is None:
            raise self._damaged(f"version {version} of the schema of table {oid} is missing")
        return schema

    def commits(self, segment: Segment) -> tuple[Lsn, Lsn]:
        """The lowest and the highest commit LSN in a segment."""
        commits = self._positions(segment, "commit_lsn").column(0)
        return Lsn(commits[0].as_py()), Lsn(commits[-1].as_py())

    def transactions(self, segment: Segment) -> set[tuple[Lsn, int]]:
        """Commit LSN and xid of every transaction in a segment."""
        found = self._positions(segment, "commit_lsn", "xid")
        one = found.group_by(found.column_names).aggregate([])
        return {(Lsn(lsn), xid) for lsn, xid in zip(*(column.to_pylist() for column in one.columns), strict=True)}

    def commits_of(self, segment: Segment, leaf: int) -> list[Lsn]:
        """The commit LSNs of the changes in a segment that are in one partition."""
        read = self._positions(segment, "commit_lsn", "relation").columns
        return [Lsn(lsn) for lsn, oid in zip(*(column.to_pylist() for column in read), strict=True) if oid == leaf]

    def begins(self, segment: Segment) -> tuple[Lsn, int]:
        """Commit LSN and seq of the first change in a segment."""
        first = self._positions(segment, "commit_lsn", "seq")
        return Lsn(first.column(0)[0].as_py()), int(first.column(1)[0].as_py())

    def _positions(self, segment: Segment, *columns: str) -> pa.Table:
        """Some of its own columns of all changes in a segment, in their order."""
        meta = self.schema(int(segment.file.split("/")[-2]), segment.schema).meta
        self.verify(segment)
        with self.open(segment) as file:
            if (found := read_columns(file, [getattr(meta, column) for column in columns])) is None:
                raise self._damaged(f"segment {segment.file} can't be read")
        return found

    def sweep(self) -> int:
        """Delete temporary files and segments that no manifest names; return how many."""
        named = set[str]()
        for number in self._numbers():
            if (manifest := self._read_if_kept(number)) is not None:
                self._weights[number] = manifest.bytes
                named.update(segment.file for cut in manifest.tables.values() for segment in cut.segments)
        swept = self.storage.sweep()
        for table in self.storage.prefixes(SEGMENTS):
            for name in self.storage.names(table):
                if name.endswith(".parquet") and name not in named:
                    self.storage.delete(name)
                    swept += 1
        return swept

    def retire(self, upto: int) -> int:
        """Delete manifests up to `upto` with their segments, oldest first. The last one stays: it is the position."""
        last = self.last()
        if last is None:
            return 0
        self._delete_unneeded()
        first = self._oldest or self.oldest()
        beyond = max(first, min(upto + 1, last.number))
        for number in range(first, beyond):
            if (manifest := self._read_if_kept(number)) is None:
                continue
            # The manifest is deleted first: segments without a manifest are swept; the opposite would be damage.
            self.storage.delete(_manifest(number))
            self._cache.pop(number, None)
            self._unneeded += [segment.file for cut in manifest.tables.values() for segment in cut.segments]
            self._delete_unneeded()
        self._oldest = beyond
        return beyond - first

    def _delete_unneeded(self) -> None:
        while self._unneeded:
            self.storage.delete(self._unneeded[-1])
            self._unneeded.pop()

    def _read_if_kept(self, number: int) -> Manifest | None:
        """A manifest, or None if it was retired meanwhile, with its segments."""
        try:
            return self.read(number)
        except ChangeLogDamaged:
            if self.has(number):
                raise
            return None

    def _numbers(self) -> list[int]:
        found = (_NUMBERED.fullmatch(name) for name in self.storage.names(MANIFESTS))
        return [int(each[1]) for each in found if each is not None]

    def _remember(self, manifest: Manifest) -> None:
        self._cache[manifest.number] = manifest
        while len(self._cache) > _CACHED_MANIFESTS:
            self._cache.popitem(last=False)

    def _damaged(self, cause: str) -> ChangeLogDamaged:
        return ChangeLogDamaged(group=self.group, path=self.storage.uri(), cause=cause)


def _manifest(number: int) -> str:
    return f"{MANIFESTS}/{number}.json"
