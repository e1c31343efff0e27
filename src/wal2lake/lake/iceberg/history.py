"""The position record in the history of an Iceberg table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..format import Record
from .expired_versions import ExpiredVersions
from .java import Java
from .metadata import NOTED, later, record_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def newest_record(
    session: SparkSession, java: Java, loaded: Any, current: Any, summary: Mapping[str, str]
) -> Record | None:
    """The record of the newest version that has one: maintenance by others does not copy it.

    `current` is the current snapshot of a loaded table, `summary` its summary.

    Compaction restates the record that it found, and Iceberg may have rebased it on a later commit; so the newest
    record of it and of the versions before it is used. If others have expired the version with the record, its copy in
    the properties is used, provided that the current version descends from that one.
    """
    found: Record | None = None
    expired, snapshot = ExpiredVersions(session, loaded), current
    while snapshot is not None:
        record = record_of(summary)
        found, parent = later(found, record), snapshot.parentId()
        if parent is None or (record is not None and summary.get("operation") != "replace"):
            break
        snapshot = loaded.snapshot(parent)
        if snapshot is None:
            noted = json.loads(loaded.properties().get(NOTED) or "{}")
            if parent == noted.get("snapshot"):
                return later(found, record_of(noted))
            snapshot = expired.snapshot(parent) if found is None else None
        summary = {} if snapshot is None else java.summary(snapshot)
    return found


def staged_version(loaded: Any, staged: str) -> Any:
    """The snapshot that was staged under a name, one of the latest; None if there is none."""
    snapshots = loaded.snapshots()
    listed = (snapshots.get(place) for place in range(snapshots.size() - 1, -1, -1))
    return next((each for each in listed if each.summary().get("wap.id") == staged), None)
