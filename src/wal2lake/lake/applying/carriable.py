"""Columns that a lake table written by Spark can't have, and the remedy at the source."""

from __future__ import annotations

from ...errors import TableError
from ...quoting import identifier, shell, toml
from ...schema import TableSchema
from ..format import TableFormat


def require_carriable(schema: TableSchema, tables: TableFormat) -> None:
    """Raise TableError if the lake can't have a table with these columns."""
    table = str(schema.id)
    leave_out = f"leave the table out: exclude = [{toml(table)}] in [[groups]]"
    if not schema.columns:
        raise TableError(table=table, cause="it has no columns", remedy=leave_out)
    reserved = [name for name in schema.names if name in tables.reserved_columns]
    # Names of Parquet columns pass through Hadoop's configuration, which would substitute variables in them.
    variables = [name for name in schema.names if "${" in name]
    causes = [f"{tables.name} reserves the column name {name}" for name in reserved]
    causes += [f"Spark takes the column name {name} for a variable" for name in variables]
    if causes:
        renames = " ".join(_rename(schema, name) for name in [*reserved, *variables])
        raise TableError(
            table=table,
            cause=", ".join(causes),
            remedy=f"{renames} then: wal2lake tables resync {shell(table)}; or {leave_out}",
        )


def _rename(schema: TableSchema, column: str) -> str:
    """A statement that gives a column a name that is free and that the lake can have."""
    name = column.replace("${", "_{").strip("_") + "_"
    while name in schema.names:
        name += "_"
    table = identifier(schema.id.schema, schema.id.name)
    return f"ALTER TABLE {table} RENAME COLUMN {identifier(column)} TO {identifier(name)};"
