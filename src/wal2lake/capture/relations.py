"""The target of each relation in the stream (its root, or itself), and the schema that its rows were written in.

The schema comes from the catalog. Where a relation message differs from the catalog, the catalog has changed since the
rows were written, and the schema is built from the message. Its attribute numbers are derived from earlier schemas and
from the catalog.

If a setting that keeps something out of the lake does not fit the table any more, all values of the table are withheld
until the setting is corrected and the table is re-copied: nothing gets into the log by mistake.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..change import MARKED_LSN
from ..changelog import ChangeLog
from ..config import GroupTables, TableConfig, settings_of
from ..decode import Relation, RelationColumn, Target
from ..errors import ConfigError, SourceError
from ..position import Lsn
from ..schema import Bounds, Column, Membership, ReplicaIdentity, TableId, TableSchema
from ..source import CatalogReader
from ..source.publishing import append_name, publication_name
from ..source.tables import (
    CatalogColumn,
    CatalogTable,
    anything_masked,
    lost_masks,
    masked_column,
    means,
    overrides_by_table,
)
from ..source.triggers import whole
from ..types import Masking, delimiter, lake_type
from . import column_identity
from .partition_roots import PartitionRoots

log = logging.getLogger(__name__)


class RelationResolver:
    """Finds the target of a relation for the decoder. Closes the catalog reader."""

    def __init__(
        self, catalog: CatalogReader, group: str, changelog: ChangeLog, overrides: Mapping[str, TableConfig],
        published_only: bool = True,
    ) -> None:  # fmt: skip
        """`published_only`: every relation that comes was in a publication of the group when it was written."""
        self._published_only = published_only
        self._catalog, self._group, self._log, self._overrides = catalog, group, changelog, overrides
        self._leafwise = isinstance(overrides, GroupTables) and overrides.group.leafwise
        self.names: dict[int, str] = {}
        """the name of each table that was resolved, by oid"""
        self._partitions = PartitionRoots(catalog, group, changelog, overrides, published_only)
        self.attached, self.doubts = self._partitions.attached, self._partitions.doubts

    def __call__(self, relation: Relation, commit_lsn: Lsn) -> Target | None:
        return self._target(relation, commit_lsn)

    def _target(self, relation: Relation, commit_lsn: Lsn, agreed: bool = False) -> Target | None:
        """`agreed`: only if the catalog agrees; raises SourceError if it does not."""
        table = self._catalog.tables([relation.oid]).get(relation.oid)
        root = table.root if table is not None and not self._leafwise else relation.oid
        if not self._leafwise:
            root = self._partitions.root_of(relation.oid, root, commit_lsn)
        if not self._meant(root):
            return None
        current, fitting = self._describe(root)
        leaf = relation.oid if root != relation.oid else None
        if agreed and leaf is not None and self._partitions.may_be_of_others(leaf, root, current):
            raise _not_agreed()
        levels = self._partitions.note(leaf, root, current, commit_lsn) if leaf is not None else ()
        if current is None or not self._agrees(current, relation, table):
            if agreed:
                raise _not_agreed()
            log.info("relation %s.%s differs from the catalog: its message is used", relation.namespace, relation.name)
            schema = self._from_message(relation, root, current, table)
        else:
            if agreed and current.key_index and relation.identity is ReplicaIdentity.FULL:
                # Such a message does not show whether the transaction itself dropped the key.
                raise _not_agreed()
            schema = _of_partitioned(current, relation) if current.partitioned else _with_identity(current, relation)
        last = self._log.schemas.last(root)
        lost = lost_masks(self._by_name(), last, schema)
        if not fitting or lost or (last is None and self._of_unknown_masks(table, root)):
            # It keeps the names of columns, so that the catalog reader knows that the table has masks.
            schema = replace(withheld(schema), settings_from=(*schema.settings_from, *lost))
        self.names[schema.oid] = str(schema.id)
        # Bounds of a partition may contain values that a mask hides, and do not apply to masked values.
        bounded = leaf is not None and not schema.masked
        bounds = self._bounds(leaf, levels) if leaf is not None and bounded else None
        return Target(schema, self._log.schemas.version(schema), leaf, bounds, levels)

    def resolve_at_once(self, relation: Relation) -> Target | None:
        """The target for an open transaction, as if it committed last: only if the catalog agrees, and without waiting
        for locks.

        Changes that the transaction makes to the catalog are invisible, and may be locked, until it commits.
        """
        with self._catalog.without_waiting():
            return self._target(relation, Lsn(MARKED_LSN), agreed=True)

    def close(self) -> None:
        self._catalog.close()

    def _meant(self, root: int) -> bool:
        """Whether the group mirrors it; another owner's publication may have more tables, some streams have all."""
        if not isinstance(self._overrides, GroupTables) or self._overrides.group.publication is None:
            return self._published_only or root in self._published()
        publication = self._catalog.named_publication(self._overrides.group)
        table = self._catalog.tables([root]).get(root)
        return table is not None and root in publication.tables and means(self._overrides.group, table.id)

    def _published(self) -> frozenset[int]:
        """The tables in the group's own publications, by themselves or by their buffers."""
        ours = (publication_name(self._group), append_name(self._group))
        return self._catalog.published(ours[0]) | self._catalog.published(ours[1])

    def _describe(self, oid: int) -> tuple[TableSchema | None, bool]:
        """The table in the catalog, and whether the settings keep out of the lake what they should."""
        try:
            return self._catalog.describe([oid], self._overrides).get(oid), True
        except ConfigError as error:
            # A wrong setting of one table must not stop the group; the apply stops the table instead.
            log.warning("settings of a table are not used: %s", error)
            rest = GroupTables({}, self._overrides.group) if isinstance(self._overrides, GroupTables) else None
            schema = self._catalog.describe([oid], rest).get(oid)
            return schema, schema is None or not self._settings(schema.id, schema.settings_from).withholds

    def _of_unknown_masks(self, table: CatalogTable | None, root: int) -> bool:
        """Whether an unknown relation may be part of a masked table: it is dropped, or detached."""
        if not anything_masked(self._overrides):
            return False
        if isinstance(self._overrides, GroupTables) and self._overrides.group.publication is not None:
            # A named publication has the mirrored tables only.
            return table is None
        return table is None or root not in self._published()

    def _settings(self, id: TableId, settings_from: Sequence[TableId]) -> TableConfig:
        return settings_of(self._by_name(), id, settings_from)

    def _by_name(self) -> Mapping[str, TableConfig]:
        return overrides_by_table(self._overrides)

    def _agrees(self, root: TableSchema, relation: Relation, table: CatalogTable | None) -> bool:
        """Whether the columns of a message are those in the catalog. A partition may have them in another order."""
        if not root.partitioned:
            return _agrees(root, relation)
        if sorted(_shapes(root.columns)) != sorted(_shapes(relation.columns)):
            return False
        if table is not None:
            # Only the order shows whether columns have swapped their names.
            names = frozenset(root.names)
            return _shapes(column for column in table.columns if column.name in names) == _shapes(relation.columns)
        # The partition is dropped: columns have kept their names if they had the same ones in the schema before.
        last = self._log.schemas.last(root.oid)
        if last is None:
            return False
        before = {column.name: column.attnum for column in last.columns}
        return all(before.get(column.name, column.attnum) == column.attnum for column in root.columns)

    def _bounds(self, leaf: int, levels: tuple[Membership, ...]) -> Bounds | None:
        try:
            bounds, later = self._catalog.partition_bounds(leaf)
            return bounds if later == levels else None
        except SourceError as error:
            # The partition is locked or dropped: the truncation says that its bounds are unknown.
            log.warning("bounds of partition %d could not be read: %s", leaf, error)
            return None

    def _from_message(
        self, relation: Relation, root: int, current: TableSchema | None, table: CatalogTable | None
    ) -> TableSchema:
        written = self._log.schemas.of(root)
        known = [schema for schema in (current, *reversed(written)) if schema is not None]
        types = self._catalog.types([column.type_oid for column in relation.columns])
        id = current.id if current is not None else TableId(relation.namespace, relation.name)
        settings_from = known[0].settings_from if known else ()
        wanted = self._settings(id, settings_from)
        columns = []
        version = self._catalog.server_version
        numbers = _numbers(version, relation, table, current, written, own=root == relation.oid)
        for sent, number in zip(relation.columns, numbers, strict=True):
            column = _remembered(known, sent, number)
            if column is None:
                declared = lake_type(sent.type_oid, sent.typmod, 0, types)
                name = types[sent.type_oid].name if sent.type_oid in types else "unknown"
                lake = wanted.types.get(sent.name, declared)
                mask = wanted.mask.get(sent.name) or _mask(known, number)
                column = Column(
                    sent.name, sent.type_oid, sent.typmod, name, lake, attnum=number, mask=mask,
                    delimiter=delimiter(sent.type_oid, types),
                )  # fmt: skip
                column = _older(known, masked_column(column))
            columns.append(column)
        partitioned = root != relation.oid or (current is not None and current.partitioned)
        if partitioned and known:
            # Leaves may have another column order; the root's is the one used before.
            order = {name: place for place, name in enumerate(known[0].names)}
            columns.sort(key=lambda column: order.get(column.name, len(order)))
        heaps = current.heaps if current is not None else ()
        schema = TableSchema(
            root,
            id,
            tuple(columns),
            (),
            relation.identity,
            partitioned,
            heaps,
            heaps_later=True,
            settings_from=settings_from,
        )
        if known:
            schema = replace(schema, where=known[0].where, only=known[0].only, entry=known[0].entry)
            schema = replace(schema, catalog_key=known[0].catalog_key, by_name=known[0].by_name)
        if partitioned:
            return whole(schema) if root == relation.oid else _with_root_key(schema, known)
        return _with_identity(schema, relation, known)


def _not_agreed() -> SourceError:
    return SourceError(operation="reading the catalog", cause="it has another table than the transaction")


def withheld(schema: TableSchema) -> TableSchema:
    """The same table without values: hashes identify its rows, everything else is NULL."""
    kept = {column.name for column in schema.naming_columns}
    columns = tuple(
        column
        if column.mask
        else masked_column(replace(column, mask=Masking.SHA256 if column.name in kept else Masking.NULL))
        for column in schema.columns
    )
    return replace(schema, columns=columns)


def _mask(known: Sequence[TableSchema], number: int) -> Masking | None:
    """The mask of a column that may have been renamed; also if it could be one that has a mask."""
    masks = [column.mask for schema in known for column in schema.columns if column.mask]
    if number == 0:
        return Masking.NULL if masks else None
    same = (column.mask for schema in known for column in schema.columns if column.attnum == number and column.mask)
    return next(same, None)


def _numbers(
    server_version: int, relation: Relation, table: CatalogTable | None, current: TableSchema | None,
    written: Sequence[TableSchema], own: bool,
) -> tuple[int, ...]:  # fmt: skip
    """The attribute number of each column of a relation in its table; 0 if unknown. `own`: it is that table."""
    names = [column.name for column in relation.columns]
    last = written[-1] if written else None
    if last is not None and last.oid == relation.oid and _agrees(last, relation):
        return tuple(column.attnum for column in last.columns)
    if table is None:
        return (0,) * len(names)
    sent = {column.attnum for column in table.columns if column.published(server_version)}
    if current is not None and current.oid == table.oid:
        sent &= {column.attnum for column in current.columns}
    now = {column.attnum: column.name for column in table.columns if column.attnum in sent}
    unsent = frozenset(column.attnum for column in table.columns if column.attnum not in sent)
    before = {column.attnum: column.name for column in last.columns} if last and last.oid == relation.oid else {}
    before.pop(0, None)
    told = column_identity.numbers(names, column_identity.Known(now, table.attributes, before, unsent))
    if own:
        return told
    # A partition has attribute numbers of its own; its columns have the names of the root's.
    of_root = {column.name: column.attnum for column in current.columns} if current is not None else {}
    return tuple(of_root.get(now.get(number, ""), 0) for number in told)


def _agrees(schema: TableSchema, relation: Relation) -> bool:
    return _shapes(schema.columns) == _shapes(relation.columns)


def _shapes(columns: Iterable[Column | CatalogColumn | RelationColumn]) -> list[tuple[str, int, int]]:
    return [(column.name, column.type_oid, column.typmod) for column in columns]


def _of_partitioned(schema: TableSchema, relation: Relation) -> TableSchema:
    """A partitioned table in the stream. Only triggers tell of the root itself; else there are its partitions."""
    return whole(schema) if relation.oid == schema.oid else schema


def _with_identity(schema: TableSchema, relation: Relation, known: Sequence[TableSchema] = ()) -> TableSchema:
    """The schema of a plain table with the key and identity at the time of the write, never the present ones."""
    # Under FULL every column is flagged, whatever the key was.
    full = relation.identity is ReplicaIdentity.FULL
    flagged = () if full else tuple(column.name for column in relation.columns if column.key)
    key = next((one.key for one in (schema, *known) if set(one.key) == set(flagged)), flagged)
    return replace(schema, identity=relation.identity, key=key)


def _with_root_key(schema: TableSchema, known: Sequence[TableSchema]) -> TableSchema:
    """The schema of a partitioned table, from a leaf's message, with the root's key under the names of that time.

    The decoder checks for each message whether the key identifies the leaf's rows.
    """
    if not known:
        return schema
    names = {column.attnum: column.name for column in schema.columns if column.attnum}
    unnumbered = {column.name for column in schema.columns if not column.attnum}
    found = [
        names.get(column.attnum, column.name if column.name in unnumbered else None) for column in known[0].key_columns
    ]
    key = tuple(name for name in found if name is not None)
    whole = len(key) == len(found)
    return replace(
        schema, identity=known[0].identity, key=key if whole else (), key_index=known[0].key_index if whole else 0
    )


def _remembered(known: list[TableSchema], sent: RelationColumn, number: int) -> Column | None:
    """A known column with the same name, type and number."""
    for schema in known:
        for column in schema.columns:
            same = (column.name, column.type_oid, column.typmod) == (sent.name, sent.type_oid, sent.typmod)
            if same and column.attnum == number:
                return column
    return None


def _older(known: list[TableSchema], column: Column) -> Column:
    """A column with the value of rows that are older than it, from any schema that has its number."""
    same = [one for schema in known for one in schema.columns if one.attnum == column.attnum != 0]
    if not same:
        return replace(column, missing_known=False)
    told = [one for one in same if one.missing is not None]
    return replace(column, missing=told[0].missing if told else None, missing_known=same[0].missing_known)
