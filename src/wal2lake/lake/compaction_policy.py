"""When a lake table needs maintenance, and how much of it at a time: a judgement on a few numbers, without Spark.

    Facts (of the current version, read with every apply) ── due ──► Work | None
    sizes of its files (looked at only when work is due)  ── choose ─► Rewrite | None

A table that nothing happens to costs nothing. Small files are compacted as a log-structured store does it: a file is
only written again together with at least half its size of smaller ones, so that the same rows are not written over and
over. Rows that are deleted are dropped from the files that have the largest share of them. A table that is left alone
is tidied: no deleted row stays, because some readers are slow with a single one; of all time, that takes a small share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..retry import COMPACTION

if TYPE_CHECKING:
    from ..config import MaintenanceConfig

FULL_SIZE = 64 * 1024 * 1024
"""bytes that files are compacted to at most; larger ones would only be slower to write again"""
PARTS = 8
"""files that a table is left in, as long as they are worth it: who reads it has work for as many cores"""
PART_SIZE = 1024 * 1024
"""bytes from which on a file is worth being left alone"""
STEP_SIZE = 64 * 1024 * 1024
"""bytes that are written again in one piece of work, so that changes never wait long for it"""
TINY = 256 * 1024
"""bytes below which writing a file again costs nothing that matters"""
DELETED_SHARE = 0.2
"""share of deleted rows, of a table and of a file, from which on they are dropped"""
QUIET_SECONDS = 60.0
QUIET_FILES = 4
"""small files that are compacted when a table was left alone: it is read as often as a busy one, and nobody waits"""
TIDY_SHARE = 0.05
"""share of the time that may go into dropping the last deleted rows of tables that are left alone"""
PRESSING = 1.5
"""how many times as many small files as make maintenance due make it urgent: each makes every apply slower"""
OVERDUE = 4
"""how many times as much of all else as makes maintenance due makes it urgent"""
EXPIRY_SHARE = 0.25
"""how much more than is to be kept piles up before it expires, so that each time is worth its cost"""
EXPIRY_PAUSE = 30.0
"""seconds between two expiries at least: tags of others may hold versions that are due to go"""


_WIDE = 500
"""bytes of a stored row"""
_SMALL = 32 * 1024 * 1024
"""bytes of a table"""


@dataclass(frozen=True)
class Facts:
    """What the current version of a table says of itself. Without numbers nothing is ever due."""

    data_files: int = 0
    delete_files: int = 0
    records: int = 0
    """rows stored, those that are deleted included"""
    deleted: int = 0
    """rows stored and deleted"""
    size: int = 0
    snapshots: int = 0
    oldest: float = 0.0
    """when the oldest version was made, in seconds since 1970"""
    newest: float = 0.0
    """when the current version was made"""

    @property
    def wide(self) -> bool:
        """Whether its rows are so large, and so many, that to move all of them costs more than to read them twice."""
        return self.size > max(_WIDE * self.records, _SMALL)

    @property
    def files(self) -> int:
        # A deletion vector belongs to a data file; position delete files of older formats may outnumber them.
        return max(self.data_files, self.delete_files)


@dataclass(frozen=True)
class Memory:
    """What is known of a table from its last maintenance in this process."""

    files: int = 0
    """files that were not worth joining"""
    deleted: int = 0
    """deleted rows that were not worth dropping"""
    stayed: int = 0
    """deleted rows that even tidying has left"""
    failures: int = 0
    not_before: float = 0.0
    expired: float = 0.0
    swept: float = 0.0


@dataclass(frozen=True)
class Work:
    compact: bool
    expire: bool
    urgent: bool
    """to be done though changes wait, because every apply gets slower without it"""
    tidy: bool = False
    """drop every deleted row: the table is left alone"""


@dataclass(frozen=True)
class DataFile:
    size: int
    records: int
    deleted: int


@dataclass(frozen=True)
class Rewrite:
    """Which files are written again: all smaller than a size, and all with at least a share of deleted rows."""

    below: int
    share: float
    target: int
    """bytes that a file has after it, about"""
    complete: bool
    """whether nothing is left to do after it"""


def full_size(table: int) -> int:
    """Bytes that the files of a table are compacted to, by the bytes of the table."""
    return min(FULL_SIZE, max(PART_SIZE, table // PARTS))


def facts_of(summary: Mapping[str, str], snapshots: int, oldest_ms: int, newest_ms: int = 0) -> Facts:
    """From the summary of a table's current snapshot, the number of its snapshots, and when the ends were made."""

    def number(name: str) -> int:
        return int(summary.get(name) or 0)

    return Facts(
        data_files=number("total-data-files"),
        delete_files=number("total-delete-files"),
        records=number("total-records"),
        deleted=number("total-position-deletes"),
        size=number("total-files-size"),
        snapshots=snapshots,
        oldest=oldest_ms / 1000,
        newest=newest_ms / 1000,
    )


def due(facts: Facts, memory: Memory, settings: MaintenanceConfig, now: float, may_tidy: bool = True) -> Work | None:
    """What a table needs, if anything. `may_tidy`: whether there is time for what is merely nice."""
    if not settings.enabled or now < memory.not_before:
        return None
    surplus = facts.files - max(memory.files, facts.size // FULL_SIZE)
    share = (facts.deleted - memory.deleted) / facts.records if facts.records else 0.0
    tidy = may_tidy and _quiet(facts, now) and facts.deleted > memory.stayed
    compact = tidy or surplus >= enough(facts, settings, now) or (share >= DELETED_SHARE and facts.data_files > 0)
    age, kept = now - facts.oldest, settings.snapshots_kept
    many, old = facts.snapshots > kept * (1 + EXPIRY_SHARE), age > settings.snapshot_retention * (1 + EXPIRY_SHARE)
    pause = max(EXPIRY_PAUSE, settings.snapshot_retention * EXPIRY_SHARE)
    expire = many and old and now - memory.expired >= pause
    if not compact and not expire:
        return None
    urgent = (
        surplus >= settings.small_files * PRESSING
        or share >= min(0.9, DELETED_SHARE * OVERDUE)
        or (expire and facts.snapshots > kept * OVERDUE and age > settings.snapshot_retention * OVERDUE)
    )
    return Work(compact, expire, urgent, tidy)


def enough(facts: Facts, settings: MaintenanceConfig, now: float) -> int:
    """How many small files are worth joining."""
    return min(settings.small_files, QUIET_FILES) if _quiet(facts, now) else settings.small_files


def tidied_until(now: float, seconds: float) -> float:
    """When tables may be tidied again after that took some seconds."""
    return now + seconds * (1 / TIDY_SHARE - 1)


def _quiet(facts: Facts, now: float) -> bool:
    return facts.newest > 0 and now - facts.newest >= QUIET_SECONDS


def choose(files: Sequence[DataFile], few: int, tidy: bool = False) -> Rewrite | None:
    """The files to write again, in one step of bounded size; None if none is worth it. Fewer than `few` are not."""
    ordered = sorted(files, key=lambda file: file.size)
    target = full_size(sum(file.size for file in ordered))
    joined, complete = _joined(ordered, target)
    below = ordered[joined - 1].size + 1 if joined >= max(2, few) else 0
    spent = sum(file.size for file in ordered if file.size < below)
    share = 1.0
    # A file with no row left is dropped without being read, so it never counts as work.
    least = min((_share(file) for file in ordered if file.deleted), default=1.0) if tidy else DELETED_SHARE
    worn = [file for file in ordered if file.size >= below and least <= _share(file) < 1.0]
    for file in sorted(worn, key=_share, reverse=True):
        if spent and spent + file.size > STEP_SIZE:
            complete = False
            break
        spent += file.size
        share = _share(file)
    if not below and share >= 1.0 and not any(_share(file) >= 1.0 for file in ordered):
        return None
    return Rewrite(below, share, target, complete)


def _joined(ordered: Sequence[DataFile], target: int) -> tuple[int, bool]:
    """How many of the smallest files are compacted, and whether a step has room for all that are worth it."""
    best = total = 0
    for count, file in enumerate(ordered, start=1):
        if 2 * file.size >= target:
            # Files do not come out at their target exactly.
            break
        if total + file.size > STEP_SIZE:
            return best, False
        if file.size <= max(TINY, 2 * total):
            best = count
        total += file.size
    return best, True


def _share(file: DataFile) -> float:
    return min(file.deleted, file.records) / file.records if file.records else 0.0


def seen(memory: Memory, facts: Facts) -> Memory:
    """A table that has become smaller is not measured by what it was."""
    if not facts.snapshots or (facts.files >= memory.files and facts.deleted >= max(memory.deleted, memory.stayed)):
        return memory
    files, deleted = min(memory.files, facts.files), min(memory.deleted, facts.deleted)
    return replace(memory, files=files, deleted=deleted, stayed=min(memory.stayed, facts.deleted))


def after_success(memory: Memory, work: Work, before: Facts, after: Facts, complete: bool, now: float) -> Memory:
    """What is left was not worth it, unless there was too much for one step."""
    memory = replace(memory, failures=0, not_before=0.0, expired=now if work.expire else memory.expired)
    if not work.compact:
        return memory
    progress = after.files < before.files or after.deleted < before.deleted
    if not complete and progress:
        return replace(memory, files=0, deleted=0, stayed=0)
    stayed = after.deleted if work.tidy else memory.stayed
    return replace(memory, files=after.files, deleted=after.deleted, stayed=stayed)


def after_failure(memory: Memory, now: float) -> Memory:
    failures = memory.failures + 1
    return replace(memory, failures=failures, not_before=now + COMPACTION.after(failures))
