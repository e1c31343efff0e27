"""Decides when a lake table needs maintenance, and how much at a time, from a few numbers. Pure, without Spark.

    Facts (of the current version, read with every apply) ── due ──► Work | None
    sizes of its files (read only when work is due)       ── choose ─► Rewrite | None

An unchanged table costs nothing. Small files are compacted as in a log-structured store: a file is rewritten only
together with smaller ones of at least half its size, so that rows are not rewritten again and again. Deleted rows are
dropped from the files with the largest share of them. An idle table is tidied until no deleted row is left, because
some readers are slow with a single one; tidying may take a small share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...retry import COMPACTION
from ..format import DataFile, Rewrite
from ..model import Facts, Work

if TYPE_CHECKING:
    from ...config import MaintenanceConfig

FULL_SIZE = 64 * 1024 * 1024
"""maximum target size of compacted files, in bytes; larger ones would only be slower to rewrite"""
PARTS = 8
"""number of files to keep, as long as they are large enough: readers can use as many cores"""
PART_SIZE = 1024 * 1024
"""size from which a file is large enough, in bytes"""
STEP_SIZE = 64 * 1024 * 1024
"""bytes that are rewritten in one piece of work, so that changes never wait long for it"""
TINY = 256 * 1024
"""size below which rewriting a file costs next to nothing, in bytes"""
DELETED_SHARE = 0.2
"""share of deleted rows, of a table and of a file, from which they are dropped"""
QUIET_SECONDS = 60.0
QUIET_FILES = 4
"""small files that trigger a compaction of an idle table: it is read as often as a busy one, and delays no changes"""
TIDY_SHARE = 0.05
"""share of the time for dropping the last deleted rows of idle tables"""
PRESSING = 1.5
"""multiple of the small files of a due compaction at which it is urgent: each makes every apply slower"""
OVERDUE = 4
"""the same multiple for all other work"""
EXPIRY_SHARE = 0.25
"""excess over what is kept at which versions expire, so that each expiration is worth its cost"""
EXPIRY_PAUSE = 30.0
"""minimum seconds between two expirations: tags of others may hold versions that are due"""


@dataclass(frozen=True)
class Memory:
    """Results of a table's last maintenance in this process."""

    files: int = 0
    """files that were not worth compacting"""
    deleted: int = 0
    """deleted rows that were not worth dropping"""
    stayed: int = 0
    """deleted rows that even tidying has left"""
    failures: int = 0
    not_before: float = 0.0
    expired: float = 0.0
    swept: float = 0.0


def full_size(table: int) -> int:
    """Target size of compacted files, by the size of the table."""
    return min(FULL_SIZE, max(PART_SIZE, table // PARTS))


def due(facts: Facts, memory: Memory, settings: MaintenanceConfig, now: float, may_tidy: bool = True) -> Work | None:
    """The work that a table needs, if any. `may_tidy`: whether there is time for optional work."""
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
    """How many small files are worth compacting."""
    return min(settings.small_files, QUIET_FILES) if _quiet(facts, now) else settings.small_files


def tidied_until(now: float, seconds: float) -> float:
    """When tables may be tidied again, after tidying took some seconds."""
    return now + seconds * (1 / TIDY_SHARE - 1)


def _quiet(facts: Facts, now: float) -> bool:
    return facts.newest > 0 and now - facts.newest >= QUIET_SECONDS


def choose(files: Sequence[DataFile], few: int, tidy: bool = False) -> Rewrite | None:
    """The files to rewrite in one step of bounded size; None if none is worth it. Fewer than `few` are not."""
    ordered = sorted(files, key=lambda file: file.size)
    target = full_size(sum(file.size for file in ordered))
    joined, complete = _joined(ordered, target)
    below = ordered[joined - 1].size + 1 if joined >= max(2, few) else 0
    spent = sum(file.size for file in ordered if file.size < below)
    share = 1.0
    # A file without remaining rows is dropped without being read, so it is no work.
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
    """How many of the smallest files to compact, and whether one step can take all that are worth it."""
    best = total = 0
    for count, file in enumerate(ordered, start=1):
        if 2 * file.size >= target:
            # Compacted files do not have exactly their target size.
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
    """Adapt to a table that has become smaller."""
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
