"""The output plugin: what of it the server has is tried with a slot that lasts as long as its session."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ..config import PGOUTPUT, SourceConfig
from ..quoting import toml
from ..schema import TableSchema
from ..source import Connection
from ..source.publishing import PluginTrial, try_plugin
from .findings import Finding, Severity

_MAY_BE_NO_NUMBER = {700: "real", 701: "double precision", 1700: "numeric"}
_OURS = "[source] plugin = 'pgoutput'"


def look_at_plugin(conn: Connection, source: SourceConfig) -> PluginTrial | None:
    """None: pgoutput, which every server has."""
    return None if source.plugin == PGOUTPUT else try_plugin(conn, source.plugin, f"wal2lake_check_{os.getpid()}")


def judge_plugin(tried: PluginTrial) -> Iterator[Finding]:
    name = f"plugin {tried.plugin}"
    if tried.encoding != "UTF8":
        yield Finding(
            name,
            Severity.BLOCKS,
            f"writes texts in the database's encoding, {tried.encoding}, and only UTF8 is read",
            _OURS,
        )
    if tried.trust is not None:
        yield Finding(
            name, Severity.BLOCKS, "is not among the output plugins that the server trusts", tried.trust, sql=True
        )
    elif tried.missing is not None:
        yield Finding(name, Severity.BLOCKS, "is not installed on the server", tried.missing)
    elif tried.refused is not None:
        yield Finding(name, Severity.WARNS, f"could not be tried: {tried.refused}", "run: wal2lake check")
    yield Finding(
        name, Severity.NOTES, "has only the names of tables and columns: if it is not certain which are meant, "
        "because a table is altered while its rows are written, the table is re-copied", f"to avoid that: {_OURS}",
    )  # fmt: skip


def judge_numbers(tried: PluginTrial, schemas: Iterable[TableSchema]) -> Iterator[Finding]:
    """Tables with values that an old wal2json writes like NULL."""
    if tried.exact:
        return
    for schema in schemas:
        names = [column.name for column in schema.columns if column.type_oid in _MAY_BE_NO_NUMBER]
        if names:
            yield Finding(
                str(schema.id), Severity.BLOCKS, f"{tried.plugin} of this server writes NaN, Infinity and NULL alike "
                f"in columns {', '.join(names)}: the first of them stops the table",
                f"install wal2json 2.6 or newer on the server; or: {_OURS}; or: exclude = [{toml(str(schema.id))}]",
            )  # fmt: skip
