"""Reads the metadata of a lake table without Spark: from the SQLite catalog and Iceberg's metadata file.

For runs that may have nothing to do, where starting a JVM would take longer than all the rest. The result is that of
`IcebergTables.find`, or an exception.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...schema import TableId
from ..format import Found, NeedsSession
from ..names import CATALOG, CATALOG_FILE
from .metadata import described, local

_BUSY_SECONDS = 10.0


class NotPlain(NeedsSession):
    """Only Iceberg itself can read it."""


def find(lake: Path, table: TableId) -> Found | None:
    """The current table; None if it does not exist. Raises NotPlain."""
    try:
        location = _metadata_location(lake / CATALOG_FILE, table)
        if location is None:
            return None
        if not location.endswith(".metadata.json") or location.endswith(".gz.metadata.json"):
            raise NotPlain
        found = _found(json.loads(Path(local(location)).read_text("utf-8")))
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
        raise NotPlain from error
    if found.source is not None and found.record is None:
        # The version with the record was expired; Iceberg knows where else to look.
        raise NotPlain
    return found


def _metadata_location(catalog: Path, table: TableId) -> str | None:
    if not catalog.is_file():
        raise NotPlain
    with closing(sqlite3.connect(f"file:{quote(str(catalog))}?mode=rw", uri=True, timeout=_BUSY_SECONDS)) as connection:
        row = connection.execute(
            "SELECT metadata_location FROM iceberg_tables"
            " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
            [CATALOG, table.schema, table.name],
        ).fetchone()
    return None if row is None else str(row[0])


def _found(metadata: Mapping[str, Any]) -> Found:
    listed = metadata.get("snapshots") or []
    snapshots = {int(snapshot["snapshot-id"]): snapshot for snapshot in listed}
    current = snapshots.get(metadata.get("current-snapshot-id", -1))
    summaries, each = [], current
    while each is not None:
        summaries.append(each.get("summary") or {})
        each = snapshots.get(each.get("parent-snapshot-id", -1))
    times = (len(listed), int(listed[0]["timestamp-ms"]), int(current["timestamp-ms"])) if current else None
    return described(metadata.get("properties") or {}, str(metadata["location"]), summaries, times)
