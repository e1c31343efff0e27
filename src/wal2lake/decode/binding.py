"""Maps the columns of a relation in the stream to the columns of its target table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ..position import Lsn
from ..schema import Column, ReplicaIdentity, TableSchema
from ..types import Converted, Masking, Reader, arrow_type, binary_reader, lake_type
from .messages import BINARY, TEXT
from .model import Relation, ResolveRelation, Target, TextNeeded


@dataclass(frozen=True)
class Binding:
    """A relation and its target: `order` has for each column of the table its index in the relation."""

    relation: Relation
    target: Target
    order: tuple[int, ...]
    mismatch: str | None
    """how relation and table differ, so that no row can be read"""
    misleading: str | None
    """why the table's key does not identify its rows, so that only a copy has them"""
    traceable: bool
    """whether its updates and deletes identify their row"""
    readers: tuple[Reader, ...] | None = None
    """of a stream in binary form: for each column of the table the function that reads its values"""

    @property
    def form(self) -> int:
        """of the values in the stream"""
        return TEXT if self.readers is None else BINARY

    @property
    def schema(self) -> TableSchema:
        return self.target.schema

    @property
    def key_places(self) -> tuple[int, ...]:
        names = self.schema.names
        return tuple(self.order[names.index(name)] for name in self.schema.key)

    @property
    def key_readers(self) -> tuple[Reader | None, ...]:
        return self.readers_of(self.schema.key_columns)

    def readers_of(self, columns: Sequence[Column]) -> tuple[Reader | None, ...]:
        names = self.schema.names
        return tuple(self.readers[names.index(column.name)] if self.readers else None for column in columns)


class Described:
    """A relation as the stream described it, bound to its target when the first change needs it."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self._bound = False
        self._binding: Binding | None = None

    def bind(self, resolve: ResolveRelation, commit_lsn: int, binary: bool) -> Binding | None:
        """None: the table is not mirrored. `commit_lsn`: of the change that needs it."""
        if not self._bound:
            target = resolve(self.relation, Lsn(commit_lsn))
            self._binding = None if target is None else _bind(self.relation, target, binary)
            self._bound = True
        return self._binding


def _bind(relation: Relation, target: Target, binary: bool) -> Binding:
    places = {column.name: place for place, column in enumerate(relation.columns)}
    mismatch = _mismatch(relation, target.schema)
    order = () if mismatch else tuple(places[name] for name in target.schema.names)
    readers = tuple(map(_reader, _sent(relation, target.schema))) if binary and not mismatch else None
    misleading = _misleading(relation, target.schema) if target.schema.partitioned else None
    return Binding(relation, target, order, mismatch, misleading, _traceable(relation, target.schema), readers)


def _sent(relation: Relation, schema: TableSchema) -> list[Column]:
    """The columns of a table that the stream has."""
    typmods = {column.name: column.typmod for column in relation.columns}
    return [replace(column, typmod=typmods[column.name]) for column in schema.columns]


def readable(type_oid: int, typmod: int) -> bool:
    """Whether a column of this type, without settings, can be read in binary form."""
    return binary_reader(type_oid, typmod, lake_type(type_oid, typmod, 0, {})) is not None


def _reader(column: Column) -> Reader:
    """The function that reads a column's binary form. Raises TextNeeded if there is none."""
    if column.mask is Masking.NULL:
        return lambda values: Converted(pa.nulls(len(values), arrow_type(column.lake)))
    found = binary_reader(column.type_oid, column.typmod, column.lake) if column.mask is None else None
    if found is None:
        raise TextNeeded(column.type_name)
    return found


def _traceable(relation: Relation, schema: TableSchema) -> bool:
    if relation.identity is ReplicaIdentity.FULL:
        return True
    return not schema.insert_only and _flagged(relation).issuperset(schema.key)


def _flagged(relation: Relation) -> set[str]:
    return {column.name for column in relation.columns if column.key}


def _misleading(relation: Relation, schema: TableSchema) -> str | None:
    """Why the key of a partitioned table may not have been unique when a leaf's rows were written."""
    flagged, key = _flagged(relation), set(schema.key)
    if schema.key_index:
        # The root's own key is valid for every leaf; a table without an identity takes inserts only.
        known = not flagged or flagged >= key
    else:
        known = not key or (relation.identity is not ReplicaIdentity.FULL and flagged == key)
    return None if known else f"rows of partition {relation.namespace}.{relation.name} were identified by another key"


def _mismatch(relation: Relation, schema: TableSchema) -> str | None:
    sent = {column.name: column for column in relation.columns}
    known = {column.name: column for column in schema.columns}
    if missing := sorted(known.keys() - sent.keys()):
        return f"column {missing[0]} is missing in the stream"
    if more := sorted(sent.keys() - known.keys()):
        return f"column {more[0]} is new"
    for name, column in known.items():
        if sent[name].type_oid != column.type_oid:
            return f"column {name} has another type"
    unsent = [name for name in schema.key if not sent[name].key]
    if unsent and not schema.partitioned and _flagged(relation):
        return f"key column {unsent[0]} is not part of the replica identity"
    return None
