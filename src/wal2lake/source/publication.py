"""The publication of a group: `wal2lake_<group>`, an explicit list of tables.

Partitioned tables are named by their root with publish_via_partition_root = false: PostgreSQL then sends each leaf's
changes under the leaf's own oid, TRUNCATE of one leaf included, and a partition made later is in from its first row.
A publication counts from when it was made: it must exist before the slot whose stream uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from psycopg import sql

from ..errors import SourceRefused
from ..schema import TableId
from .catalog import GENERATED_PUBLISHED_SINCE
from .connect import Connection, explained, query

log = logging.getLogger(__name__)


def publication_name(group: str) -> str:
    return f"wal2lake_{group}"


def ensure(conn: Connection, name: str, tables: Collection[tuple[int, TableId]]) -> bool:
    """Make the publication hold exactly these tables. Returns whether anything had to change."""
    wanted = dict(tables)
    with conn.transaction():
        with explained("reading", f"publication {name}"):
            row = conn.execute(query("publication"), {"name": name}).fetchone()
        if row is None:
            _create(conn, name, wanted)
            return True
        oid, all_tables, complete, via_root, generated = row
        if all_tables:
            raise SourceRefused(
                operation="using", object=f"publication {name}", cause="it is FOR ALL TABLES",
                remedy=f'DROP PUBLICATION "{name}"; a publication with a table list is made in its place',
            )  # fmt: skip
        changed = _set_options(conn, name, complete and not via_root, generated)
        return _set_tables(conn, name, oid, wanted) or changed


def exists(conn: Connection, name: str) -> bool:
    with explained("reading", f"publication {name}"):
        return conn.execute(query("publication"), {"name": name}).fetchone() is not None


def drop(conn: Connection, name: str) -> None:
    with explained("dropping", f"publication {name}"):
        conn.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


def _options(conn: Connection) -> sql.SQL:
    if conn.info.server_version >= GENERATED_PUBLISHED_SINCE:
        return sql.SQL(
            "publish = 'insert, update, delete, truncate', publish_via_partition_root = false,"
            " publish_generated_columns = stored"
        )
    return sql.SQL("publish = 'insert, update, delete, truncate', publish_via_partition_root = false")


def _create(conn: Connection, name: str, wanted: dict[int, TableId]) -> None:
    tables = sql.SQL("FOR TABLE {}").format(_list(wanted.values())) if wanted else sql.SQL("")
    role, database = sql.Identifier(conn.info.user).as_string(conn), sql.Identifier(conn.info.dbname).as_string(conn)
    remedy = f"GRANT CREATE ON DATABASE {database} TO {role}; and make {role} (a member of) the owner of the tables"
    with explained("creating", f"publication {name}", remedy):
        conn.execute(sql.SQL("CREATE PUBLICATION {} {} WITH ({})").format(sql.Identifier(name), tables, _options(conn)))
    log.info("publication %s created with %d tables", name, len(wanted))


def _set_options(conn: Connection, name: str, right: bool, generated: str) -> bool:
    if right and (conn.info.server_version < GENERATED_PUBLISHED_SINCE or generated == "s"):
        return False
    with explained("altering", f"publication {name}"):
        conn.execute(sql.SQL("ALTER PUBLICATION {} SET ({})").format(sql.Identifier(name), _options(conn)))
    return True


def _set_tables(conn: Connection, name: str, oid: int, wanted: dict[int, TableId]) -> bool:
    with explained("reading", f"publication {name}"):
        rows = conn.execute(query("publication_tables"), {"publication": oid}).fetchall()
    # A table with a row filter or a column list is taken out and put in again whole.
    surplus = {row[0]: TableId(row[1], row[2]) for row in rows if row[0] not in wanted or row[3]}
    present = {row[0] for row in rows} - set(surplus)
    missing = {table: id for table, id in wanted.items() if table not in present}
    if surplus:
        with explained("altering", f"publication {name}"):
            conn.execute(
                sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(sql.Identifier(name), _list(surplus.values()))
            )
    if missing:
        role = sql.Identifier(conn.info.user).as_string(conn)
        remedy = f"make {role} (a member of) the owner: ALTER TABLE {next(iter(missing.values()))} OWNER TO {role}"
        with explained("adding tables to", f"publication {name}", remedy):
            conn.execute(
                sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), _list(missing.values()))
            )
    if surplus or missing:
        log.info("publication %s: %d tables added, %d dropped", name, len(missing), len(surplus))
    return bool(surplus or missing)


def _list(tables: Collection[TableId]) -> sql.Composed:
    # ONLY: a table that inherits from another is a table of its own.
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(id.schema, id.name)) for id in tables)
