"""The position record of a lake table, and whether a commit may follow it. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...errors import CommitFailed, ForeignTable, LakePositionLost, LakeRolledBack, LakeTableGone
from ...position import LakeVersion, Lsn
from ...schema import TableId
from ..format import Found, Record
from ..model import Applied, Batch


def applied_of(found: Found, table: TableId) -> Applied:
    if found.record is None or found.schema is None:
        raise LakePositionLost(table=str(table))
    record = found.record
    # After an interrupted rename the table's own description has another name.
    schema = found.schema if found.schema.id == table else replace(found.schema, id=table)
    return Applied(
        record.lsn, record.manifest, record.changes, found.rows, schema, found.compaction_facts, record.version,
        record.visibility,
    )  # fmt: skip


def as_record(now: Applied) -> Record:
    """The record of a table that was found."""
    return Record(now.lsn, now.manifest, now.changes, now.version, now.visibility)


def require_no_older(now: Applied, known: LakeVersion, lsn: Lsn | None) -> None:
    """Raise LakeRolledBack if a table has an older version than a known commit, which was made at `lsn`."""
    if now.version < known:
        raise LakeRolledBack(table=str(now.schema.id), lsn=now.lsn, known=lsn)


def already_applied(now: Applied, applied: Applied, batch: Batch, epoch: int) -> tuple[Applied, bool]:
    """The record, and whether it includes the batch; if not, the table must be at `applied`."""
    require_no_older(now, applied.version, applied.lsn)
    already = includes(now, batch)
    if not already:
        require_same(now, applied, epoch)
    return now, already


def still_at(now: Applied, applied: Applied, epoch: int) -> Applied:
    """The record of a table that is at `applied`. Raises LakeRolledBack or CommitFailed."""
    require_no_older(now, applied.version, applied.lsn)
    require_same(now, applied, epoch)
    return now


def require_same(now: Applied, applied: Applied, epoch: int) -> None:
    """Raise CommitFailed if a table has unknown commits, or commits of a later run."""
    table = str(applied.schema.id)
    # Batches without effect move the position without a commit, but not the version or the count of changes.
    if now.version != applied.version or now.changes != applied.changes:
        raise CommitFailed(table=table, cause="the table has changed since it was read")
    if now.version.epoch > epoch:
        raise CommitFailed(table=table, cause="a run that began later has written to the table")


def next_version(version: LakeVersion, epoch: int) -> LakeVersion:
    return LakeVersion(epoch, version.commit + 1)


def require_own(found: Found, table: TableId, source_id: str, formerly: str | None = None) -> Found:
    if found.source not in (source_id, formerly or source_id):
        raise not_ours(table)
    return found


def not_ours(table: TableId) -> ForeignTable:
    return ForeignTable(table=str(table), lake_table=f"lake.{table}")


def table_gone(table: TableId) -> LakeTableGone:
    return LakeTableGone(table=str(table))


def includes(now: Applied, batch: Batch) -> bool:
    # A batch may end within a manifest; its number is then that of the manifest before.
    return now.manifest >= batch.to_manifest and now.lsn >= batch.to_lsn
