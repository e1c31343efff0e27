"""Names of lake tables in Spark SQL, and of their directories.

A directory has the name of its table, with every character that is unsafe in paths written as `~` and two hex digits
per UTF-8 byte: "Größe 1" is `Gr~c3~b6~c3~9fe~201`. A random suffix makes it unique: a table keeps its directory when it
is renamed, and another one may get its name.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..schema import TableId

CATALOG = "lake"
OURS = "_wal2lake"
CATALOG_FILE = "catalog.db"

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def quoted(name: str) -> str:
    """An identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string for Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def sql_name(table: TableId) -> str:
    return f"{CATALOG}.{quoted(table.schema)}.{quoted(table.name)}"


def directory(lake: Path, table: TableId, suffix: str) -> Path:
    """The directory for the files of a new table, with the default catalog."""
    schema = _safe(table.schema)
    if schema == OURS or schema.startswith(CATALOG_FILE):
        schema = _escape(schema[0]) + schema[1:]
    return lake / schema / f"{_safe(table.name)}-{suffix}"


def _safe(name: str) -> str:
    # A leading dot would make a path hidden or special, a leading dash an option.
    start, rest = (_escape(name[0]), name[1:]) if name[0] in ".-" else ("", name)
    return start + _UNSAFE.sub(lambda found: _escape(found[0]), rest)


def _escape(character: str) -> str:
    return "".join(f"~{byte:02x}" for byte in character.encode())
