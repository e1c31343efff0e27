"""The change log of one group, on local storage: what has been captured, durably and in order.

    <root>/<group>/
      group.json             which database it is from, and where it begins
      append.json            from where on the stream has the publication of append-only tables
      acknowledged.json      the highest position that the source may have been told
      stored.json, timeline.json     what the source must know, see `witness`
      manifests/<n>.json     one cut each, n contiguous
      segments/<oid>/*.parquet
      schemas/<oid>/<v>.json     see `schemas`

A file appears under its name whole and on disk, or not at all; a manifest is never written over. What no manifest
names is an orphan file. One process writes (it holds the group's lock), any number read.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ChangeLogDamaged, GroupHeld, SourceReplaced
from ..position import Lsn
from ..schema import TableSchema
from .checksum import verify
from .durable import belongs_to_another, create, read, replace, sync_directory
from .leaves import Leaves
from .manifest import Manifest, Segment, TableCut
from .origin import GroupFile, Identity, Origin, Start
from .schemas import Schemas
from .witness import Witness

if TYPE_CHECKING:
    import pyarrow as pa

_CACHED_MANIFESTS = 512


class ChangeLog:
    """Reads and writes `<root>/<group>/`. Methods that write are for the process that holds the group."""

    def __init__(self, root: Path, group: str) -> None:
        self.group = group
        self.directory = Path(root).absolute() / group
        self._manifests = self.directory / "manifests"
        self._cache: OrderedDict[int, Manifest] = OrderedDict()
        self._weights: dict[int, int] = {}
        """bytes of manifests that were swept: they are asked for right after"""
        self._last = 0
        self._oldest = 0
        self._group_file = GroupFile(self.directory, group)
        self.schemas = Schemas(self.directory / "schemas")
        self.leaves = Leaves(self.directory)

    def create(self, identity: Identity, slot: str) -> None:
        """Make the log's directory, for a slot that is about to be made. A log that is there keeps what it has."""
        for directory in (self._manifests, self.directory / "segments", self.schemas.directory):
            directory.mkdir(parents=True, exist_ok=True)
        sync_directory(self.directory.parent)
        origin = Origin(identity.system_identifier, identity.database_oid, slot)
        self._group_file.write(origin, self.starts if self.exists else [])

    def begin(self, lsn: Lsn, appends: bool = False, damaged: bool = False) -> None:
        """Begin a stretch at a position: numbers go on, and nothing may be applied across the gap before it.

        `damaged`: what was captured before can't be read, and is deleted.
        """
        numbers = self._numbers()
        first = max([*numbers, *(stretch.manifest - 1 for stretch in self.starts)], default=0) + 1
        kept = [stretch for stretch in self.starts if stretch.manifest < first]
        (self.directory / "acknowledged.json").unlink(missing_ok=True)
        self.witness.forget()
        (self.directory / "append.json").unlink(missing_ok=True)
        if appends:
            self.append_from(lsn)
        self._group_file.write(self.origin, [*kept, Start(first, lsn)])
        if damaged:
            for number in numbers:
                self._manifest_path(number).unlink(missing_ok=True)
            self._cache.clear()
            self._last = self._oldest = 0
            self.schemas.set_aside_damaged()
        if first > 1:
            # Positions of a restored database say nothing beside older ones: numbers tell the stretches apart.
            self.publish(lsn, 0, None, {})

    @property
    def witness(self) -> Witness:
        return Witness(self.directory)

    @property
    def exists(self) -> bool:
        return (self.directory / "group.json").exists()

    @property
    def started(self) -> bool:
        """Whether there is a position to stream from."""
        return self.exists and bool(self.starts)

    def remove(self) -> None:
        """Delete the whole log."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._cache.clear()
        self._group_file.forget()
        self.schemas.forget()
        self._last = self._oldest = 0

    @property
    def origin(self) -> Origin:
        data = self._group_file.read()
        return Origin(data["system_identifier"], data["database_oid"], data["slot"])

    def must_be_from(self, identity: Identity) -> None:
        """Refuse a database that is not the one the log was written from."""
        origin = self.origin
        if (origin.system_identifier, origin.database_oid) != (identity.system_identifier, identity.database_oid):
            cause = f"system identifier {origin.system_identifier}, database oid {origin.database_oid}"
            raise SourceReplaced(group=self.group, cause=cause)

    @property
    def starts(self) -> list[Start]:
        """All stretches, oldest first."""
        return [Start(part["manifest"], Lsn.parse(part["lsn"])) for part in self._group_file.read()["starts"]]

    @property
    def stretch(self) -> Start:
        """The stretch that is being written."""
        starts = self.starts
        if not starts:
            raise self._damaged("it has no start: the slot was never made")
        return starts[-1]

    def oldest(self) -> int:
        """Number of the oldest manifest that is kept, or of the next one if there is none."""
        return min(self._numbers(), default=self.stretch.manifest)

    def position(self) -> Lsn:
        """Every change that committed below this, and after the start, is in a manifest."""
        last, start = self.last(), self.stretch
        return last.to_lsn if last is not None and last.number >= start.manifest else start.lsn

    def acknowledged(self) -> Lsn:
        """The highest position that the source may have been told; a slot beyond it was moved by somebody else."""
        position = self.position()
        text = read(self.directory / "acknowledged.json")
        try:
            return max(position, Lsn.parse(json.loads(text)["lsn"])) if text is not None else position
        except (ValueError, KeyError, TypeError):
            raise self._damaged("acknowledged.json can't be read") from None

    def append_from(self, lsn: Lsn) -> None:
        """The publication of append-only tables exists; a stream from this position on can have it."""
        replace(self.directory / "append.json", json.dumps({"lsn": str(lsn)}))

    def appends_since(self) -> Lsn | None:
        """From where on a stream can have the publication of append-only tables; None: there is none."""
        text = read(self.directory / "append.json")
        try:
            return None if text is None else Lsn.parse(json.loads(text)["lsn"])
        except (ValueError, KeyError, TypeError):
            # As if it was not there: it is written again, and the tables are re-copied.
            return None

    def record_acknowledged(self, lsn: Lsn) -> None:
        """To be durable before a position beyond the last manifest is sent."""
        replace(self.directory / "acknowledged.json", json.dumps({"lsn": str(lsn)}))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the group's log for writing; it is free again when the process ends, however it ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
                raise GroupHeld(group=self.group, holder=f"process {holder or '?'}") from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(fd)

    def publish(
        self, to_lsn: Lsn, transactions: int, commit_ts: datetime | None, tables: Mapping[int, TableCut]
    ) -> Manifest:
        """Append a manifest. Its segments must be on disk; when this returns, so is the manifest."""
        last = self.last()
        number = last.number + 1 if last is not None else self.stretch.manifest
        manifest = Manifest(number, self.position(), to_lsn, transactions, commit_ts, tables)
        if manifest.to_lsn < manifest.from_lsn:
            raise self._damaged(f"manifest {number} would end at {to_lsn}, before its start {manifest.from_lsn}")
        try:
            create(self._manifest_path(number), manifest.to_json())
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
        """Whether a manifest is there, at the price of one look at one file."""
        return os.path.exists(self._manifest_name(number))  # noqa: PTH110 - a Path costs more than the question

    def weights(self) -> list[tuple[int, int]]:
        """Number and bytes of each manifest that is kept, oldest first."""
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
        path = self._manifest_path(number)
        try:
            text = read(path)
            if text is None:
                raise self._damaged(f"manifest {number} is missing")
            manifest = Manifest.from_json(text)
        except (ValueError, KeyError, TypeError):
            raise ChangeLogDamaged(group=self.group, path=str(path), cause="it is not what was written") from None
        if manifest.number != number:
            raise self._damaged(f"manifest {number} says that it is {manifest.number}")
        self._remember(manifest)
        return manifest

    def after(self, number: int, most: int | None = None) -> list[Manifest]:
        """Manifests above `number` in order, each continuing the one before. Those retired already are an error.

        With `most`, the first so many of them.
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

    def path(self, segment: Segment) -> Path:
        return self.directory / segment.file

    def segment_directory(self, oid: int) -> Path:
        directory = self.directory / "segments" / str(oid)
        if not directory.exists():
            directory.mkdir(parents=True, exist_ok=True)
            sync_directory(directory.parent)
        return directory

    def schema(self, oid: int, version: int) -> TableSchema:
        """A version of a table's schema that a segment names."""
        schema = self.schemas.get(oid, version)
        if schema is None:
            raise self._damaged(f"version {version} of the schema of table {oid} is missing")
        return schema

    def commits(self, segment: Segment) -> tuple[Lsn, Lsn]:
        """The lowest and the highest commit LSN in a segment."""
        commits = self._positions(segment, seq=False).column(0)
        return Lsn(commits[0].as_py()), Lsn(commits[-1].as_py())

    def begins(self, segment: Segment) -> tuple[Lsn, int]:
        """Commit LSN and seq of the first change in a segment."""
        first = self._positions(segment)
        return Lsn(first.column(0)[0].as_py()), int(first.column(1)[0].as_py())

    def _positions(self, segment: Segment, seq: bool = True) -> pa.Table:
        """Commit LSN, and seq, of all changes in a segment, in their order."""
        import pyarrow.parquet as pq

        meta = self.schema(int(self.path(segment).parent.name), segment.schema).meta
        verify(self.path(segment), segment.sha256)
        try:
            return pq.read_table(self.path(segment), columns=[meta.commit_lsn, meta.seq][: 1 + seq])
        except OSError as error:
            raise self._damaged(f"segment {segment.file} can't be read ({type(error).__name__})") from None

    def sweep(self) -> int:
        """Remove temporary files and segments that no manifest names. Returns how many."""
        named = set[str]()
        for number in self._numbers():
            manifest = self._read_if_kept(number)
            if manifest is not None:
                self._weights[number] = manifest.bytes
                named.update(segment.file for cut in manifest.tables.values() for segment in cut.segments)
        # The process that runs the group has the log open, too, and may be about to give its file a name.
        orphans = [path for path in self.directory.rglob("*.tmp") if path.is_file() and not belongs_to_another(path)]
        orphans += [
            path for path in (self.directory / "segments").glob("*/*.parquet")
            if path.relative_to(self.directory).as_posix() not in named
        ]  # fmt: skip
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)

    def retire(self, upto: int) -> int:
        """Delete manifests up to `upto` with their segments, oldest first. The last one stays: it is the position."""
        last = self.last()
        if last is None:
            return 0
        first = self._oldest or self.oldest()
        beyond = max(first, min(upto + 1, last.number))
        for number in range(first, beyond):
            manifest = self._read_if_kept(number)
            if manifest is None:
                continue
            # The manifest goes first: segments without one are swept, a manifest without segments would be damage.
            self._manifest_path(number).unlink(missing_ok=True)
            self._cache.pop(number, None)
            for cut in manifest.tables.values():
                for segment in cut.segments:
                    self.path(segment).unlink(missing_ok=True)
        self._oldest = beyond
        return beyond - first

    def _read_if_kept(self, number: int) -> Manifest | None:
        """A manifest, or None if it was retired meanwhile, with its segments."""
        try:
            return self.read(number)
        except ChangeLogDamaged:
            if self.has(number):
                raise
            return None

    def _numbers(self) -> list[int]:
        if not self._manifests.is_dir():
            return []
        return [int(path.stem) for path in self._manifests.iterdir() if path.suffix == ".json" and path.stem.isdigit()]

    def _manifest_path(self, number: int) -> Path:
        return Path(self._manifest_name(number))

    def _manifest_name(self, number: int) -> str:
        return f"{self._manifests}/{number}.json"

    def _remember(self, manifest: Manifest) -> None:
        self._cache[manifest.number] = manifest
        while len(self._cache) > _CACHED_MANIFESTS:
            self._cache.popitem(last=False)

    def _damaged(self, cause: str) -> ChangeLogDamaged:
        return ChangeLogDamaged(group=self.group, path=str(self.directory), cause=cause)
