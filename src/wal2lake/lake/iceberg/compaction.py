"""The steps of compaction, with Iceberg's own actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...schema import TableId
from ..format import DataFile, Rewrite
from ..names import sql_name
from ..spark.gateway import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNLIMITED = str(2**62)
_POSITION_DELETES = 1
_VECTORS_SINCE = 3


def has_vectors(session: SparkSession, loaded: Any) -> bool:
    """Whether the table's format has deletion vectors, which need no compaction of their own."""
    return int(jvm(session).org.apache.iceberg.TableUtil.formatVersion(loaded)) >= _VECTORS_SINCE


def data_files(session: SparkSession, table: TableId) -> list[DataFile]:
    """The data files of the current version, each with its number of deleted rows, as far as known."""
    listed = session.table(f"{sql_name(table)}.files").select(
        "content", "file_path", "file_size_in_bytes", "record_count", "referenced_data_file"
    )
    rows = listed.collect()
    deleted: dict[str, int] = {}
    for content, _, _, records, owner in rows:
        if content == _POSITION_DELETES and owner is not None:
            deleted[owner] = deleted.get(owner, 0) + records
    return [
        DataFile(size, records, deleted.get(path, 0)) for content, path, size, records, _ in rows if content == 0
    ]  # fmt: skip


def rewrite_files(
    session: SparkSession, loaded: Any, rewrite: Rewrite, most: int, properties: Mapping[str, str]
) -> None:
    options = {
        "target-file-size-bytes": str(rewrite.target),
        "min-file-size-bytes": str(rewrite.below),
        # Files larger than the target are not rewritten.
        "max-file-size-bytes": _UNLIMITED,
        "max-file-group-size-bytes": str(most),
        "min-input-files": "2",
        "delete-ratio-threshold": str(rewrite.share),
        "partial-progress.enabled": "false",
    }
    _execute(_actions(session).rewriteDataFiles(loaded).binPack(), options, properties)


def rewrite_deletes(session: SparkSession, loaded: Any, properties: Mapping[str, str]) -> None:
    """For formats without deletion vectors: compact position delete files, and drop positions in files that do not
    exist any more, which would still be counted as deleted rows.
    """
    _execute(_actions(session).rewritePositionDeletes(loaded), {"rewrite-all": "true"}, properties)


def expire(session: SparkSession, loaded: Any, keep: int, before: float, properties: Mapping[str, str]) -> None:
    """Expire old versions, except the newest one that has the position record."""
    if loaded.properties().get("gc.enabled") == "false":
        return
    kept, before_ms = max(keep, _depth(loaded, properties) + 1), int(before * 1000)
    oldest = loaded.snapshots().get(0)
    if loaded.refs().size() > 1:
        # Tags and branches of others have their own rules, which only the action applies together with vectors.
        _actions(session).expireSnapshots(loaded).expireOlderThan(before_ms).retainLast(kept).execute()
    elif loaded.snapshots().size() > kept and oldest.timestampMillis() < before_ms:
        # With an explicit version Iceberg computes which files are still reachable. By age alone it removes a file of
        # deletion vectors as soon as one of them is replaced, although others in the file are still in use.
        expiry = loaded.expireSnapshots().expireSnapshotId(oldest.snapshotId())
        expiry.expireOlderThan(before_ms).retainLast(kept).commit()


def _depth(loaded: Any, properties: Mapping[str, str]) -> int:
    """The number of versions from the newest one with the record to the current one."""
    snapshot, depth = loaded.currentSnapshot(), 0
    while snapshot is not None and not all(snapshot.summary().get(name) == value for name, value in properties.items()):
        parent = snapshot.parentId()
        snapshot, depth = (loaded.snapshot(parent) if parent is not None else None), depth + 1
    return depth


def _actions(session: SparkSession) -> Any:
    return jvm(session).org.apache.iceberg.spark.actions.SparkActions.get(session._jsparkSession)


def _execute(action: Any, options: Mapping[str, str], properties: Mapping[str, str]) -> None:
    for name, value in options.items():
        action.option(name, value)
    for name, value in properties.items():
        action.snapshotProperty(name, value)
    action.execute()
