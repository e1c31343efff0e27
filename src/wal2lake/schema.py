"""Tables and their columns, as the source has them at one moment or as the lake has them.

Frozen and serializable: they are written into the change log, sent to another process and compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from . import quoting
from .types import LakeType, Masking

OLD_PREFIX = "old_"


class ReplicaIdentity(StrEnum):
    """What PostgreSQL logs of the old row in an UPDATE or DELETE (pg_class.relreplident)."""

    DEFAULT = "d"
    INDEX = "i"
    FULL = "f"
    NOTHING = "n"


@dataclass(frozen=True, order=True)
class TableId:
    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableId:
        """Parse `public.orders` or `"My Schema"."a.b"`; the default schema is public."""
        parts = [name for name, _ in split_identifier(text)]
        if len(parts) == 1:
            return cls("public", parts[0])
        if len(parts) == 2:
            return cls(parts[0], parts[1])
        raise ValueError(f"not a table name: {text!r}")

    def __str__(self) -> str:
        return f"{_readable(self.schema)}.{_readable(self.name)}"


@dataclass(frozen=True)
class Column:
    """One column: PostgreSQL's type and typmod as sent in a relation message, and the lake type that carries it."""

    name: str
    type_oid: int
    typmod: int
    type_name: str
    lake: LakeType
    nullable: bool = True
    attnum: int = 0
    """attribute number in PostgreSQL, never reused in a table; 0: unknown"""
    missing: str | None = None
    """value of rows that are older than the column, as PostgreSQL's text; None: NULL"""
    missing_known: bool = True
    """False: the values in rows that are older than the column are known only from a read of the table"""
    kept: bool = False
    """dropped at the source, kept in the lake"""
    mask: Masking | None = None
    """what replaces its values, `missing` included"""
    delimiter: str = ","
    """of an array: the delimiter between elements in PostgreSQL's text"""
    relies: tuple[str, ...] | None = field(default=None, compare=False)
    """facts of the catalog that the text of its values depends on, see `source/typefacts`; None: unknown"""
    unaltered: bool = field(default=False, compare=False)
    """whether the type is as it was created"""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "lake": str(self.lake)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Column:
        mask, relies = data.get("mask"), data.get("relies")
        return cls(**{
            **data, "lake": LakeType.parse(data["lake"]), "mask": Masking(mask) if mask else None,
            "relies": None if relies is None else tuple(relies),
        })  # fmt: skip


@dataclass(frozen=True)
class Membership:
    """A partition of the level above it. Another `since` means that it was attached again, with unknown rows."""

    oid: int
    since: int
    """the transaction that attached it, or created it as a partition"""
    made: bool = field(default=False, compare=False)
    """known to have been created as a partition, so it had no rows before"""


@dataclass(frozen=True)
class Bounds:
    """Which rows of a table are in a partition: PostgreSQL's condition, and the attribute numbers of its columns.

    The numbers identify the columns after a rename.
    """

    text: str
    columns: tuple[tuple[str, int], ...]

    def to_json(self) -> list[Any]:
        return [self.text, [list(column) for column in self.columns]]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Bounds:
        return cls(data[0], tuple((name, number) for name, number in data[1]))


@dataclass(frozen=True)
class HeapFile:
    """A relfilenode. Another one for the same table means that its rows were rewritten."""

    oid: int
    file: int
    levels: tuple[Membership, ...] = ()
    """of a partition: its membership at each level, from the leaf up"""
    empty: bool = field(default=False, compare=False)
    """known to have no rows at that moment"""
    outside: tuple[TableId, str, TableId] | None = field(default=None, compare=False)
    """name, relkind and parent of a partition whose changes are not in the WAL"""
    bounds: Bounds | None = None
    """of a partition: its bounds, if they can be read from the catalog"""

    def same_rows(self, other: HeapFile | None) -> bool:
        """Whether it has had the same file and membership ever since the other was read."""
        return other is not None and (self.file, self.levels) == (other.file, other.levels)

    def to_json(self) -> list[Any]:
        # The third element is unused; it stays for logs that were written before.
        levels = [[level.oid, level.since] for level in self.levels]
        return [self.oid, self.file, False, levels, self.bounds.to_json() if self.bounds is not None else None]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> HeapFile:
        levels = data[3] if len(data) > 3 else ()
        bounds = Bounds.from_json(data[4]) if len(data) > 4 and data[4] else None
        return cls(data[0], data[1], tuple(Membership(*level) for level in levels), bounds=bounds)


@dataclass(frozen=True)
class MetaNames:
    """Names of a segment's own columns: `_op` and its like, with more underscores where the table has such a column.

    - op: string, one of I, U, D
    - commit_lsn, seq: long; commit_ts: timestamp in UTC; xid: long
    - unchanged: list of int, positions in the table's columns that were sent as unchanged TOAST; null when none was
    - relation: long, the oid of the partition that the row is in; null where the table is not partitioned
    - old key columns are `<prefix>old_<name>`, null unless the key changed; `key_changed` (boolean) says so
    """

    prefix: str

    @classmethod
    def beside(cls, columns: Iterable[str]) -> MetaNames:
        taken = {name.lower() for name in columns}
        prefix = "_"
        while any(cls(prefix).clashes(name) for name in taken):
            prefix += "_"
        return cls(prefix)

    def clashes(self, name: str) -> bool:
        return name in self.plain or name.startswith(self.prefix + OLD_PREFIX)

    @property
    def plain(self) -> tuple[str, ...]:
        return (
            self.op, self.commit_lsn, self.seq, self.commit_ts, self.xid, self.unchanged, self.relation,
            self.key_changed,
        )  # fmt: skip

    @property
    def op(self) -> str:
        return self.prefix + "op"

    @property
    def commit_lsn(self) -> str:
        return self.prefix + "commit_lsn"

    @property
    def seq(self) -> str:
        return self.prefix + "seq"

    @property
    def commit_ts(self) -> str:
        return self.prefix + "commit_ts"

    @property
    def xid(self) -> str:
        return self.prefix + "xid"

    @property
    def unchanged(self) -> str:
        return self.prefix + "unchanged"

    @property
    def relation(self) -> str:
        return self.prefix + "relation"

    @property
    def key_changed(self) -> str:
        return self.prefix + "key_changed"

    def old(self, key_column: str) -> str:
        return self.prefix + OLD_PREFIX + key_column


@dataclass(frozen=True)
class TableSchema:
    """A mirrored table at one moment. For a partitioned table it is the root; its leaves are mapped to it.

    `key` names the columns that identify rows, in the lake as in the source: those of the replica identity. It is empty
    if there are none; then rows are matched as a whole under `identity` FULL, and otherwise only inserts are taken.
    Under FULL a change does not say which key was valid when it was written, so a plain table has no key then.
    """

    oid: int
    id: TableId
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    identity: ReplicaIdentity
    partitioned: bool = False
    heaps: tuple[HeapFile, ...] = field(default=(), compare=False)
    """files that hold its rows: the table's own, or those of its partitions"""
    heaps_later: bool = field(default=False, compare=False)
    """whether `heaps` was read after the columns"""
    version: int = field(default=0, compare=False)
    """of a lake table: the schema version in the change log that its columns have"""
    where: str | None = None
    """the row filter, in PostgreSQL's SQL"""
    only: tuple[int, ...] = ()
    """attribute numbers of the mirrored columns if a column list selects them; empty: no list"""
    entry: int = 0
    """oid of the publication membership (pg_publication_rel); another one means that it was unpublished for a while"""
    settings_from: tuple[TableId, ...] = ()
    """of a partition that is mirrored by itself: the tables above it, whose settings apply to it, too"""
    key_index: int = 0
    """of a partitioned table: oid of the index that makes `key` unique over all partitions; 0: proven by changes"""
    catalog_key: tuple[str, ...] = field(default=(), compare=False)
    """the latest primary key: finds rows faster and names them in messages, but never identifies them"""
    by_name: bool = field(default=True, compare=False)
    """whether it is published by name: PostgreSQL then refuses SET UNLOGGED"""
    archived: tuple[Bounds, ...] = field(default=(), compare=False)
    """of a lake table: bounds of dropped partitions whose rows it keeps"""
    meta: MetaNames = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", MetaNames.beside(column.name for column in self.columns))

    @property
    def insert_only(self) -> bool:
        return self.identity is not ReplicaIdentity.FULL and (not self.key or self.identity is ReplicaIdentity.NOTHING)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.column(name) for name in self.key)

    @property
    def naming_columns(self) -> tuple[Column, ...]:
        """The columns whose values name a row in messages."""
        return self.key_columns or tuple(column for column in self.columns if column.name in self.catalog_key)

    @property
    def masked(self) -> bool:
        return any(column.mask for column in self.columns)

    @property
    def narrowed(self) -> bool:
        """Whether rows, columns or values of it are kept out of the lake."""
        return self.masked or self.where is not None or bool(self.only)

    @property
    def source_columns(self) -> tuple[Column, ...]:
        """The columns that the source has, too."""
        return tuple(column for column in self.columns if not column.kept)

    def to_json(self) -> dict[str, Any]:
        return {
            "oid": self.oid, "schema": self.id.schema, "name": self.id.name,
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key), "identity": self.identity.value, "partitioned": self.partitioned,
            "heaps": [heap.to_json() for heap in self.heaps], "heaps_later": self.heaps_later,
            "version": self.version, "where": self.where, "only": list(self.only), "entry": self.entry,
            "heeds": [[id.schema, id.name] for id in self.settings_from],
            "key_index": self.key_index, "catalog_key": list(self.catalog_key), "by_name": self.by_name,
            "archived": [bounds.to_json() for bounds in self.archived],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSchema:
        return cls(
            oid=data["oid"],
            id=TableId(data["schema"], data["name"]),
            columns=tuple(Column.from_json(column) for column in data["columns"]),
            key=tuple(data["key"]),
            identity=ReplicaIdentity(data["identity"]),
            partitioned=data["partitioned"],
            version=data.get("version", 0),
            heaps_later=data.get("heaps_later", False),
            where=data.get("where"),
            only=tuple(data.get("only", ())),
            entry=data.get("entry", 0),
            settings_from=tuple(TableId(*id) for id in data.get("heeds", ())),
            heaps=tuple(HeapFile.from_json(heap) for heap in data.get("heaps", ())),
            key_index=data.get("key_index", 0),
            catalog_key=tuple(data.get("catalog_key", ())),
            by_name=data.get("by_name", True),
            archived=tuple(Bounds.from_json(bounds) for bounds in data.get("archived", ())),
        )


def _readable(name: str) -> str:
    plain = name.replace("_", "a").replace("$", "a")
    if plain.isalnum() and name == name.lower() and not name[0].isdigit():
        return name
    return quoting.plain(name)


_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def split_identifier(text: str) -> list[tuple[str, bool]]:
    """The parts of a dotted name, each with whether it was quoted. Raises ValueError if it is not a name."""
    parts: list[tuple[str, bool]] = []
    at, text = 0, text.strip()
    while (match := _PART.match(text, at)) is not None:
        parts.append((match[1].replace('""', '"'), True) if match[1] is not None else (match[2], False))
        at = match.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            break
        at += 1
    raise ValueError(f"not a table name: {text!r}")
