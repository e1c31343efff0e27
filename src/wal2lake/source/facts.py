"""Facts about the source that the preflight check judges: queries and plain values, no judgement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict

from ..schema import Identity, TableId
from .connect import Connection, explained, query


def dsn_is_valid(dsn: str) -> bool:
    """Whether libpq can read the connection string. Its own message may quote a password and is not passed on."""
    try:
        conninfo_to_dict(dsn)
    except Error:
        return False
    return bool(dsn.strip())


def over_unix_socket(conn: Connection) -> bool:
    """Whether libpq, with its defaults and the environment, came by a socket and not over TCP."""
    return not conn.info.host or conn.info.host.startswith(("/", "@"))


def quoted(*names: str) -> str:
    """Names as an SQL identifier, quoted whether or not they need it, for commands that people paste."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@dataclass(frozen=True)
class HeapFacts:
    """One table that will be published: a wanted table, or a leaf of a partitioned one."""

    root: TableId
    """the wanted table"""
    id: TableId
    kind: str
    """pg_class.relkind"""
    persistence: str
    """pg_class.relpersistence"""
    identity: Identity
    primary_key: bool
    deferrable_primary_key: bool
    identity_index: bool
    readable: bool
    owned: bool
    """whether the root is the role's, or of one that it is a member of"""
    owner: str
    row_security: bool
    """policies hide rows from the role"""
    bytes: int

    @property
    def sql_name(self) -> str:
        return quoted(self.id.schema, self.id.name)

    @property
    def sql_root(self) -> str:
        return quoted(self.root.schema, self.root.name)

    @property
    def identified(self) -> bool:
        """Whether PostgreSQL can tell which row an update or delete meant, and so allows them while published."""
        match self.identity:
            case Identity.FULL:
                return True
            case Identity.INDEX:
                return self.identity_index
            case Identity.DEFAULT:
                return self.primary_key
            case _:
                return False


def heap_facts(conn: Connection, oids: Iterable[int]) -> tuple[HeapFacts, ...]:
    """What will be published for the tables with these oids."""
    with explained("reading", "the privileges and keys of the tables"):
        rows = conn.execute(query("published_heaps"), {"oids": list(oids)}).fetchall()
    return tuple(
        HeapFacts(
            root=TableId(root_schema, root), id=TableId(schema, name), kind=kind, persistence=persistence,
            identity=Identity(identity), primary_key=primary, deferrable_primary_key=deferrable, identity_index=index,
            readable=readable, owned=owned, owner=owner, row_security=row_security, bytes=size,
        )
        for (root_schema, root, schema, name, kind, persistence, identity, primary, deferrable, index, readable,
             owned, owner, row_security, size) in rows
    )  # fmt: skip
