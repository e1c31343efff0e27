"""The metadata of an Iceberg table as that of a lake table: its source, its schema, its position record.

Pure: the result is the same whether the metadata was read through Iceberg or from its file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ...position import LakeVersion, Lsn
from ...schema import TableSchema
from ...visibility import Visibility
from ..format import Found, Record
from ..model import Facts

RECORD = ("wal2lake.lsn", "wal2lake.manifest", "wal2lake.changes", "wal2lake.epoch", "wal2lake.commit")
"""in the summary of a snapshot"""
VISIBILITY = "wal2lake.visibility"
"""beside them, while the snapshot of the copy sees transactions that are in the stream after its position"""
_LSN, _MANIFEST, _CHANGES, _EPOCH, _COMMIT = RECORD
SOURCE, SCHEMA, NOTED = "wal2lake.source", "wal2lake.schema", "wal2lake.record"
"""in the properties of a table"""
WAP = "write.wap.enabled"

TABLE_PROPERTIES: Mapping[str, str] = {
    "format-version": "3",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # No shuffle before small writes: it would cost more than fewer files save.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.update.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    # Commits are staged first, see `publish`.
    WAP: "true",
}


def properties_of(record: Record) -> dict[str, str]:
    """A record as properties for the summary of a snapshot."""
    version = record.version
    values = (record.lsn, record.manifest, record.changes, version.epoch, version.commit)
    visibility = {VISIBILITY: str(record.visibility)} if record.visibility is not None else {}
    return {**dict(zip(RECORD, map(str, values), strict=True)), **visibility}


def identity(schema: TableSchema, source: str) -> dict[str, str]:
    return {SOURCE: source, SCHEMA: schema_text(schema)}


def schema_text(schema: TableSchema) -> str:
    return json.dumps(schema.to_json(), ensure_ascii=False)


@lru_cache(maxsize=2048)
def _schema(text: str) -> TableSchema:
    return TableSchema.from_json(json.loads(text))


def record_of(summary: Mapping[str, str]) -> Record | None:
    lsn = summary.get(_LSN)
    if lsn is None:
        return None
    version = LakeVersion(int(summary.get(_EPOCH, 0)), int(summary.get(_COMMIT, 0)))
    visibility = summary.get(VISIBILITY)
    seen = Visibility.parse(visibility) if visibility is not None else None
    return Record(Lsn.parse(lsn), int(summary[_MANIFEST]), int(summary[_CHANGES]), version, seen)


def found(
    properties: Mapping[str, str],
    location: str,
    summary: Mapping[str, str],
    record: Record | None,
    compaction_facts: Facts,
) -> Found:
    """The metadata of a table. `summary` is that of its current snapshot."""
    schema = properties.get(SCHEMA)
    return Found(
        source=properties.get(SOURCE),
        schema=_schema(schema) if schema else None,
        record=record,
        rows=_rows(summary),
        location=location,
        compaction_facts=compaction_facts,
        stages=properties.get(WAP) == "true",
    )


def described(
    properties: Mapping[str, str],
    location: str,
    summaries: Sequence[Mapping[str, str]],
    times: tuple[int, int, int] | None,
) -> Found:
    """The metadata of a table. `summaries` are those of the current snapshot and of the ones before it; `times` are the
    number of snapshots, and the times of the oldest and the current one.
    """
    summary = summaries[0] if summaries else {}
    compaction_facts = Facts() if times is None else facts_of(summary, *times)
    return found(properties, location, summary, _newest(summaries), compaction_facts)


def _newest(summaries: Sequence[Mapping[str, str]]) -> Record | None:
    """The record of the first summary that has one; for a compaction, which restates a record, the newest."""
    found: Record | None = None
    for summary in summaries:
        record = record_of(summary)
        found = later(found, record)
        if record is not None and summary.get("operation") != "replace":
            break
    return found


def later(one: Record | None, other: Record | None) -> Record | None:
    return max(filter(None, (one, other)), key=lambda each: each.version, default=None)


def _rows(summary: Mapping[str, str]) -> int:
    return int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))


def local(file: str) -> str:
    """The path of a local file that Iceberg names as a URI or a path."""
    return "/" + file.removeprefix("file:").lstrip("/") if file.startswith(("file:", "/")) else file


def facts_of(summary: Mapping[str, str], snapshots: int, oldest_ms: int, newest_ms: int = 0) -> Facts:
    """Facts from the summary of a table's current snapshot, and number, oldest and newest time of its snapshots."""

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
