"""Where the rows of a streamed relation go: leaf to root, or to itself; and the schema that the rows were written in.

The catalog is asked for what it says now. Where a relation message disagrees with it, the catalog has moved on since
those rows were written, and the schema is built from the message, so that old rows are decoded by their own shape.
Which columns those are, by number, is then told from what was seen before and what the catalog still has.

What a setting keeps out of the lake never gets into the log because the setting does not fit the table any more: such
a table's values are withheld, all of them, until somebody has corrected the setting and the table is re-copied.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..changelog import ChangeLog
from ..config import GroupTables, SourceConfig, TableConfig, settings_of
from ..decode import Relation, Target
from ..decode.model import RelationColumn
from ..errors import ConfigError, SourceError
from ..pgtypes import Masking, delimiter, lake_type
from ..schema import Column, Identity, TableId, TableSchema
from ..source import catalog, selection
from ..source.catalog import CatalogTable
from ..source.connect import Connection, connect
from ..source.publication import publication_name, tables_of
from . import column_identity

log = logging.getLogger(__name__)

_CATALOG_TIMEOUT = "SET statement_timeout = '5s'"
_NO_WAITING = "SET lock_timeout = '10ms'"
_WAITING = "SET lock_timeout = 0"


class Resolver:
    """Answers the decoder's question for a relation. Keeps one catalog connection, made when first needed."""

    def __init__(
        self, source: SourceConfig, group: str, changelog: ChangeLog, overrides: Mapping[str, TableConfig]
    ) -> None:
        self._source, self._group, self._log, self._overrides = source, group, changelog, overrides
        self._leafwise = isinstance(overrides, GroupTables) and overrides.group.leafwise
        self._conn: Connection | None = None
        self.names: dict[int, str] = {}
        """the name of each table that was resolved, by oid"""

    def __call__(self, relation: Relation) -> Target | None:
        return self._target(self.connection(), relation)

    def _target(self, conn: Connection, relation: Relation, agreed: bool = False) -> Target | None:
        """`agreed`: only where the catalog says the same; raises SourceError where it does not."""
        table = catalog.tables(conn, [relation.oid]).get(relation.oid)
        root = table.root if table is not None and not self._leafwise else relation.oid
        if root == relation.oid and not self._leafwise:
            root = self._former_root(conn, root)
        if not self._meant(conn, root):
            return None
        current, fitting = self._describe(conn, root)
        leaf = relation.oid if root != relation.oid else None
        if current is None or not _agrees(current, relation):
            if agreed:
                raise _not_agreed()
            log.info("relation %s.%s differs from the catalog: its message is used", relation.namespace, relation.name)
            schema = self._from_message(conn, relation, root, current, table)
        else:
            if agreed and current.key_index and relation.identity is Identity.FULL:
                # Such a message does not tell whether the transaction itself has dropped the key.
                raise _not_agreed()
            schema = current if current.partitioned else _with_identity(current, relation)
        last = self._log.schemas.last(root)
        lost = selection.lost_masks(self._by_name(), last, schema)
        if not fitting or lost or (last is None and self._of_unknown_masks(conn, table, root)):
            # The names stay with it, so that the next look at it does not take it for a table without masks.
            schema = replace(withheld(schema), settings_from=(*schema.settings_from, *lost))
        self.names[schema.oid] = str(schema.id)
        # Bounds of a partition may be values that a mask is to hide, and mean nothing to masked ones.
        bounded = leaf is not None and not schema.masked
        predicate = self._predicate(conn, leaf) if leaf is not None and bounded else None
        return Target(schema, self._log.schemas.version(schema), leaf, predicate)

    def _former_root(self, conn: Connection, oid: int) -> int:
        """The table that a relation was a partition of when the change was made, if it is none any more.

        It was sent, so it was published: by itself, or as a partition.
        """
        if isinstance(self._overrides, GroupTables) and self._overrides.group.publication is not None:
            return oid
        root = self._log.leaves.root_of(oid)
        published = tables_of(conn, publication_name(self._group)) if root is not None else frozenset()
        return root if root in published and oid not in published else oid

    def glance(self, relation: Relation) -> Target | None:
        """The answer for a transaction that runs: only where the catalog agrees with it, and without waiting.

        What the transaction itself has altered is not in the catalog before it commits, and may be locked until then.
        """
        conn = self.connection()
        conn.execute(_NO_WAITING)
        try:
            return self._target(conn, relation, agreed=True)
        finally:
            conn.execute(_WAITING)

    def connection(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn = connect(self._source, self._group)
            self._conn.execute(_CATALOG_TIMEOUT)
        return self._conn

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()

    def _meant(self, conn: Connection, root: int) -> bool:
        """Whether the group wants it; a publication that is not ours may have more."""
        publication = selection.named(conn, self._overrides)
        if publication is None or not isinstance(self._overrides, GroupTables):
            return True
        table = catalog.tables(conn, [root]).get(root)
        return table is not None and root in publication.tables and selection.means(self._overrides.group, table.id)

    def _describe(self, conn: Connection, oid: int) -> tuple[TableSchema | None, bool]:
        """The table as the catalog has it, and whether what the settings keep out of the lake is kept out of it."""
        try:
            return catalog.describe(conn, [oid], self._overrides).get(oid), True
        except ConfigError as error:
            # One table's setting must not stop the group; the lake sees that the table has changed.
            log.warning("settings of a table are not used: %s", error)
            rest = GroupTables({}, self._overrides.group) if isinstance(self._overrides, GroupTables) else None
            schema = catalog.describe(conn, [oid], rest).get(oid)
            return schema, schema is None or not self._settings(schema.id, schema.settings_from).withholds

    def _of_unknown_masks(self, conn: Connection, table: CatalogTable | None, root: int) -> bool:
        """Whether a relation that was never seen may be a part of a masked table: it is gone, or nobody's any more."""
        if not selection.masked(self._overrides):
            return False
        if isinstance(self._overrides, GroupTables) and self._overrides.group.publication is not None:
            # What is not in a publication that is named is not meant at all.
            return table is None
        return table is None or root not in tables_of(conn, publication_name(self._group))

    def _settings(self, id: TableId, settings_from: Sequence[TableId]) -> TableConfig:
        return settings_of(self._by_name(), id, settings_from)

    def _by_name(self) -> Mapping[str, TableConfig]:
        return catalog.overrides_by_table(self._overrides)

    def _predicate(self, conn: Connection, leaf: int) -> str | None:
        try:
            return catalog.partition_predicate(conn, leaf)
        except SourceError as error:
            # A lock on the partition, or it is gone: a truncation of it says that its bounds are unknown.
            log.warning("bounds of partition %d could not be read: %s", leaf, error)
            return None

    def _from_message(
        self, conn: Connection, relation: Relation, root: int, current: TableSchema | None, table: CatalogTable | None
    ) -> TableSchema:
        written = self._log.schemas.of(root)
        known = [schema for schema in (current, *reversed(written)) if schema is not None]
        types = catalog.types(conn, [column.type_oid for column in relation.columns])
        id = current.id if current is not None else TableId(relation.namespace, relation.name)
        settings_from = known[0].settings_from if known else ()
        wanted = self._settings(id, settings_from)
        columns = []
        numbers = _numbers(conn, relation, table, current, written, own=root == relation.oid)
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
                column = _older(known, catalog.masked_column(column))
            columns.append(column)
        partitioned = root != relation.oid or (current is not None and current.partitioned)
        if partitioned and known:
            # Leaves may have their own column order; the root's is the one that was used before.
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
            return _with_root_key(schema, known)
        return _with_identity(schema, relation, known)


def _not_agreed() -> SourceError:
    return SourceError(operation="reading the catalog", cause="it has another table than the transaction")


def withheld(schema: TableSchema) -> TableSchema:
    """The same table with nothing of its values: hashes tell the rows apart, all else is NULL."""
    kept = {column.name for column in schema.naming_columns}
    columns = tuple(
        column
        if column.mask
        else catalog.masked_column(replace(column, mask=Masking.SHA256 if column.name in kept else Masking.NULL))
        for column in schema.columns
    )
    return replace(schema, columns=columns)


def _mask(known: Sequence[TableSchema], number: int) -> Masking | None:
    """The mask of a column that has another name by now, or that can't be told from one that has a mask."""
    masks = [column.mask for schema in known for column in schema.columns if column.mask]
    if number == 0:
        return Masking.NULL if masks else None
    same = (column.mask for schema in known for column in schema.columns if column.attnum == number and column.mask)
    return next(same, None)


def _numbers(
    conn: Connection, relation: Relation, table: CatalogTable | None, current: TableSchema | None,
    written: Sequence[TableSchema], own: bool,
) -> tuple[int, ...]:  # fmt: skip
    """The number of each column of a relation in its table; 0 where that can't be told. `own`: it is that table."""
    names = [column.name for column in relation.columns]
    last = written[-1] if written else None
    if last is not None and last.oid == relation.oid and _agrees(last, relation):
        return tuple(column.attnum for column in last.columns)
    if table is None:
        return (0,) * len(names)
    sent = {column.attnum for column in table.columns if column.published(conn.info.server_version)}
    if current is not None and current.oid == table.oid:
        sent &= {column.attnum for column in current.columns}
    now = {column.attnum: column.name for column in table.columns if column.attnum in sent}
    unsent = frozenset(column.attnum for column in table.columns if column.attnum not in sent)
    before = {column.attnum: column.name for column in last.columns} if last and last.oid == relation.oid else {}
    before.pop(0, None)
    told = column_identity.numbers(names, column_identity.Known(now, table.attributes, before, unsent))
    if own:
        return told
    # A partition has numbers of its own; what it calls a column now, its root does too.
    of_root = {column.name: column.attnum for column in current.columns} if current is not None else {}
    return tuple(of_root.get(now.get(number, ""), 0) for number in told)


def _agrees(schema: TableSchema, relation: Relation) -> bool:
    ours = [(column.name, column.type_oid, column.typmod) for column in schema.columns]
    sent = [(column.name, column.type_oid, column.typmod) for column in relation.columns]
    return sorted(ours) == sorted(sent) if schema.partitioned else ours == sent


def _with_identity(schema: TableSchema, relation: Relation, known: Sequence[TableSchema] = ()) -> TableSchema:
    """The schema of a plain table with the key and the identity that the rows were written with, never today's."""
    # Under FULL every column is flagged, whatever key there was, if any.
    full = relation.identity is Identity.FULL
    flagged = () if full else tuple(column.name for column in relation.columns if column.key)
    key = next((one.key for one in (schema, *known) if set(one.key) == set(flagged)), flagged)
    return replace(schema, identity=relation.identity, key=key)


def _with_root_key(schema: TableSchema, known: Sequence[TableSchema]) -> TableSchema:
    """The schema of a partitioned table, as a leaf's message has it, with the root's key under the names of then.

    Whether the leaf's rows can be told apart by it is judged by the decoder, message by message.
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
    """The column as it was seen, or is, under the same name, type and number."""
    for schema in known:
        for column in schema.columns:
            same = (column.name, column.type_oid, column.typmod) == (sent.name, sent.type_oid, sent.typmod)
            if same and column.attnum == number:
                return column
    return None


def _older(known: list[TableSchema], column: Column) -> Column:
    """A column with what is known of rows that are older than it: any schema that has its number says that."""
    same = [one for schema in known for one in schema.columns if one.attnum == column.attnum != 0]
    if not same:
        return replace(column, missing_known=False)
    told = [one for one in same if one.missing is not None]
    return replace(column, missing=told[0].missing if told else None, missing_known=same[0].missing_known)
