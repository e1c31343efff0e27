"""The mirrored part of a table: columns, rows, and masked values.

    [tables] columns, where ──► our own publication ─┐
    a publication that a group names ────────────────┴─► Selection ──► the schema: its columns, `where`, `only`
    [tables] mask ─────────────────────────────────────────────────► Column.mask

PostgreSQL itself filters the stream, and the copy uses the same columns and condition. A setting that does not fit its
table is an error and is never ignored: otherwise the data that it hides would reach the lake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...config import GroupConfig, GroupTables, TableConfig
from ...errors import ConfigError
from ...quoting import identifier, toml, toml_key
from ...schema import TableId, TableSchema
from ...types import Masking
from ..sessions.connect import Connection, explained, query
from ..sessions.locking import wait_briefly
from . import matching
from .matching import Matched, Pattern

NARROWED_SINCE = 150000
"""server version from which there are row filters and column lists"""
_EVERYTHING = ("*.*",)
_WITHHOLDING = frozenset({"mask", "columns", "where"})


@dataclass(frozen=True)
class Selection:
    """The part of a table that a publication sends."""

    columns: frozenset[int] | None = None
    """attribute numbers of its columns; None: all"""
    where: str | None = None
    entry: int = 0
    generated: bool = True
    """whether stored generated columns are sent, if the server can"""
    by_name: bool = True
    """whether the table was added by name, not by its schema or with all tables"""


@dataclass(frozen=True)
class Named:
    """A publication that a group names and that wal2lake did not make."""

    name: str
    via_root: bool
    tables: Mapping[int, Selection]
    """its tables by oid; for partitions the root. Row filters are read only on request"""


def named(conn: Connection, overrides: Mapping[str, TableConfig] | None, filters: Collection[int] = ()) -> Named | None:
    """The publication that the group names, see `read`; None if it has its own."""
    group = overrides.group if isinstance(overrides, GroupTables) else None
    return read(conn, group, filters) if group is not None and group.publication is not None else None


def read(conn: Connection, group: GroupConfig, filters: Collection[int] = ()) -> Named:
    """Read a named publication. Raises ConfigError if it does not exist or omits kinds of changes.

    `filters`: tables whose row filters are read. Raises SourceBusy if one of them is locked.
    """
    name = group.publication or ""
    field = f"groups.{group.name}.publication"
    with explained("reading", f"publication {name}"):
        row = conn.execute(query("publication"), {"name": name}).fetchone()
        if row is None:
            known = [one for (one,) in conn.execute("SELECT pubname::text FROM pg_publication ORDER BY 1")]
            allowed = f"an existing one ({', '.join(known) or 'there is none'}), or leave it out"
            raise ConfigError(field=field, cause=f"there is no publication {name}", allowed=allowed)
        _, _, complete, via_root, generated, *_ = row
        if not complete:
            raise ConfigError(
                field=field, cause=f"publication {name} leaves out some of insert, update, delete and truncate",
                allowed=f"ALTER PUBLICATION {identifier(name)} SET (publish = 'insert, update, delete, truncate')",
            )  # fmt: skip
        narrowed = conn.info.server_version >= NARROWED_SINCE
        with conn.transaction():
            wait_briefly(conn)
            question = query("named_publication" if narrowed else "named_publication_14")
            rows = conn.execute(question, {"name": name, "filters": list(filters)}).fetchall()
        tables = {
            oid: Selection(None if columns is None else frozenset(columns), where, entry, generated == "s", by_name)
            for oid, where, columns, entry, by_name in rows
        }
    return Named(name, via_root, tables)


def match(conn: Connection, group: GroupConfig) -> Matched:
    """The tables that a group selects; with a named publication, only those that it contains."""
    matched = look(conn, group)
    if matched.problems:
        raise matched.problems[0]
    return matched


def look(conn: Connection, group: GroupConfig) -> Matched:
    """The same; problems with names are warnings."""
    found = matching.relations(conn)
    if group.publication is None:
        return matching.look(matching.Tree(found, group.leafwise), group.name, group.tables, group.exclude)
    return narrow(found, group, read(conn, group))


def narrow(found: Sequence[matching.CatalogRelation], group: GroupConfig, publication: Named) -> Matched:
    """The selected tables of a named publication. Raises ConfigError for a name that it does not contain."""
    matched = matching.look(matching.Tree(found), group.name, patterns(group), group.exclude)
    exact = [pattern for pattern in map(Pattern.parse, patterns(group)) if pattern.exact]
    for table in matched.tables:
        sql_name = identifier(table.id.schema, table.id.name)
        if table.oid not in publication.tables:
            if any(pattern.matches(table.id) for pattern in exact):
                raise ConfigError(
                    field=f"groups.{group.name}.tables",
                    cause=f"{table.id} is not in publication {publication.name}",
                    allowed=f"ALTER PUBLICATION {identifier(publication.name)} ADD TABLE {sql_name}",
                )
        elif table.partitioned and publication.via_root:
            raise ConfigError(
                field=f"groups.{group.name}.publication",
                cause=f"publication {publication.name} sends the changes of {table.id} without their partitions",
                allowed=f"ALTER PUBLICATION {identifier(publication.name)} SET (publish_via_partition_root = false), "
                f"or exclude = [{toml(str(table.id))}]",
            )
    held = tuple(table for table in matched.tables if table.oid in publication.tables)
    return replace(matched, tables=held)


def patterns(group: GroupConfig) -> tuple[str, ...]:
    """The names and patterns of a group; with a named publication the default is everything."""
    if group.publication is not None and "tables" not in group.model_fields_set:
        return _EVERYTHING
    return group.tables


def means(group: GroupConfig, table: TableId) -> bool:
    """Whether a group's names and patterns select a table, if it exists and can be mirrored."""
    wanted = any(Pattern.parse(text).matches(table) for text in patterns(group))
    return wanted and not any(Pattern.parse(text).matches(table) for text in group.exclude)


def masked(tables: Mapping[str, TableConfig]) -> bool:
    """Whether raw values must not be on disk: any table may be added to any group."""
    return any(settings.mask for settings in tables.values())


def unnamed(found: Sequence[matching.CatalogRelation], tables: Mapping[str, TableConfig]) -> dict[str, ConfigError]:
    """Settings that keep something out of a table that does not exist, by name: it may have been renamed."""
    names = {str(relation.id) for relation in found}
    return {
        name: ConfigError(
            field=f"tables.{name}", cause="there is no such table, and it may have been renamed",
            allowed="correct the name; or remove the section, if nothing of it is to be masked or left out",
        )
        for name, settings in tables.items()
        if settings.withholds and name not in names
    }  # fmt: skip


def lost_masks(tables: Mapping[str, TableConfig], last: TableSchema | None, schema: TableSchema) -> tuple[TableId, ...]:
    """Names under which a table had masks or filters that it does not have now, although the settings still exist.

    It was renamed, or detached. A section under its present name, also an empty one, settles it. `last`: the table as
    it was described before.
    """
    if last is None or not _shows_more(last, schema):
        return ()
    if tables.get(str(schema.id), TableConfig()).model_fields_set & _WITHHOLDING:
        return ()
    former = [name for name in (last.id, *last.settings_from) if name not in (schema.id, *schema.settings_from)]
    return tuple(name for name in former if tables.get(str(name), TableConfig()).withholds)


def _shows_more(last: TableSchema, schema: TableSchema) -> bool:
    hidden = {column.attnum or column.name for column in last.columns if column.mask}
    shown = {column.attnum or column.name for column in schema.columns if column.mask is None}
    return bool(hidden & shown or (last.where and not schema.where) or (last.only and not schema.only))


def require_masks(tables: Mapping[str, TableConfig], last: TableSchema | None, schema: TableSchema) -> None:
    """Raises ConfigError if a table has lost its masks by a rename."""
    if lost := lost_masks(tables, last, schema):
        raise ConfigError(
            field=f"tables.{schema.id}",
            cause=f"it had the masks and filters of {lost[0]}, and is neither that table nor a part of it",
            allowed="give it a section with a mask; mask = {} if nothing of it is to be masked",
        )  # fmt: skip


def require_fit(
    table: TableId, settings: TableConfig, columns: Mapping[str, bool], key: Sequence[str], partitioned: bool,
    server_version: int, publication: Named | None,
) -> None:  # fmt: skip
    """Raises ConfigError if a table can't be filtered or masked as set. `columns`: whether each can be published."""
    if settings.append_only and publication is not None:
        raise ConfigError(
            field=f"tables.{table}.append_only",
            cause=f"publication {publication.name}, which the group names, decides what is published",
            allowed="remove it; or leave out publication in [[groups]], so that one is created",
        )
    for setting in ("columns", "where"):
        if getattr(settings, setting):
            _require_possible(f"tables.{table}.{setting}", table, partitioned, server_version, publication)
    for setting, names in (("mask", settings.mask), ("columns", settings.columns)):
        for name in names:
            if name not in columns:
                raise ConfigError(
                    field=f"tables.{table}.{setting}.{name}" if setting == "mask" else f"tables.{table}.{setting}",
                    cause=f"the table has no column {name}", allowed=f"its columns are: {', '.join(columns)}",
                )  # fmt: skip
    if settings.columns:
        if unsent := [name for name in settings.columns if not columns[name]]:
            raise ConfigError(
                field=f"tables.{table}.columns", cause=f"generated column {unsent[0]} is not published by this server",
                allowed=f"remove {unsent[0]} from the list; PostgreSQL 18 and newer publish stored ones",
            )  # fmt: skip
        if missing := [name for name in key if name not in settings.columns]:
            raise ConfigError(
                field=f"tables.{table}.columns", cause=f"key column {missing[0]} is not in the list",
                allowed=f"add it: it identifies rows ({', '.join(key)})",
            )  # fmt: skip
    for name in key:
        if settings.mask.get(name) is Masking.NULL:
            raise ConfigError(
                field=f"tables.{table}.mask.{name}", cause="a column of the key can't be NULL in every row",
                allowed=f'mask = {{ {toml_key(name)} = "sha256" }} keeps keys distinct',
            )  # fmt: skip


def _require_possible(
    field: str, table: TableId, partitioned: bool, server_version: int, publication: Named | None
) -> None:
    if publication is not None:
        entry = f"ALTER PUBLICATION {identifier(publication.name)} SET TABLE … (…) WHERE (…)"
        raise ConfigError(
            field=field, cause=f"publication {publication.name}, which the group names, selects columns and rows",
            allowed=f"remove it; its owner can set the same with: {entry}",
        )  # fmt: skip
    if server_version < NARROWED_SINCE:
        raise ConfigError(
            field=field, cause=f"PostgreSQL {server_version // 10000} can't publish a part of a table",
            allowed="remove it, or upgrade the server to 15 or newer; mask works with every version",
        )  # fmt: skip
    if partitioned:
        raise ConfigError(
            field=field, cause=f"{table} is partitioned, and PostgreSQL publishes partitions completely",
            allowed="remove it; mask works with partitioned tables, too",
        )  # fmt: skip


def refused_filter(table: TableId, cause: str) -> ConfigError:
    return ConfigError(
        field=f"tables.{table}.where", cause=f"PostgreSQL refuses the condition: {cause}",
        allowed="a condition on columns of the table, with PostgreSQL's own immutable functions and operators; "
        "names of types with their schema",
    )  # fmt: skip
