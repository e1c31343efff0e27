"""Which columns an Iceberg table that Spark writes can't have, and what to do about them at the source."""

from __future__ import annotations

from ..errors import TableError
from ..quoting import identifier, shell, toml
from ..schema import TableSchema

_RESERVED = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)


def require_carriable(schema: TableSchema) -> None:
    """Raise TableError where the lake can't have a table with these columns."""
    table = str(schema.id)
    leave_out = f"leave the table out: exclude = [{toml(table)}] in [[groups]]"
    if not schema.columns:
        raise TableError(table=table, cause="it has no columns", remedy=leave_out)
    reserved = [name for name in schema.names if name in _RESERVED]
    # Names of Parquet columns pass through Hadoop's configuration, which would put a value in their place.
    variables = [name for name in schema.names if "${" in name]
    causes = [f"Iceberg reserves the column name {name}" for name in reserved]
    causes += [f"Spark takes the column name {name} for a variable" for name in variables]
    if causes:
        renames = " ".join(_rename(schema, name) for name in [*reserved, *variables])
        raise TableError(
            table=table,
            cause=", ".join(causes),
            remedy=f"{renames} then: wal2lake tables resync {shell(table)}; or {leave_out}",
        )


def _rename(schema: TableSchema, column: str) -> str:
    """A statement that gives a column a name that the lake can have and the table has not."""
    name = column.replace("${", "_{").strip("_") + "_"
    while name in schema.names:
        name += "_"
    table = identifier(schema.id.schema, schema.id.name)
    return f"ALTER TABLE {table} RENAME COLUMN {identifier(column)} TO {identifier(name)};"
