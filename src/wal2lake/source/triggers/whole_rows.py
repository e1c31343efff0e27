"""A table whose rows are identified as a whole."""

from __future__ import annotations

from dataclasses import replace

from ...schema import ReplicaIdentity, TableSchema


def whole(schema: TableSchema) -> TableSchema:
    """The table as its buffer tells of it: rows are identified as a whole, whatever key there is."""
    known = schema.key or schema.catalog_key
    return replace(schema, key=(), key_index=0, identity=ReplicaIdentity.FULL, catalog_key=known)
