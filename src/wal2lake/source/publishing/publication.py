"""The publications of a group: explicit lists of tables.

`wal2lake_<group>` publishes every change. `wal2lake_<group>-append` contains the append-only tables and publishes
neither updates nor deletes: for those PostgreSQL then requires no replica identity.

Partitioned tables are published by their root with publish_via_partition_root = false: PostgreSQL sends each leaf's
changes, also TRUNCATE of one leaf, under the leaf's own oid, and includes a new partition from its first row.
PostgreSQL applies row filters and column lists before it sends a row.
A publication takes effect from its creation: it must exist before the slot whose stream uses it.
Publishing a table locks it briefly, and waits for a transaction that is altering it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from ...config import GroupConfig
from ...errors import (
    ConnectionFailed,
    OtherInstallation,
    SourceAltered,
    SourceBusy,
    SourceError,
    SourceRefused,
    Wal2LakeError,
)
from ...installation import is_mark
from ...quoting import identifier
from ...schema import TableId, TableSchema
from ..model import filtered
from ..sessions.connect import Connection, explained, query
from ..sessions.locking import wait_briefly
from ..tables import selection
from ..tables.catalog_table import GENERATED_PUBLISHED_SINCE
from ..tables.facts import owner_remedy, updates_refused
from .contents import names_in

log = logging.getLogger(__name__)


_PASSING = (ConnectionFailed, SourceBusy, SourceAltered)
"""errors that are not about a table"""
_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


def publication_name(group: str) -> str:
    return f"wal2lake_{group}"


def append_name(group: str) -> str:
    """The publication of the group's append-only tables; group names can't contain a hyphen, so it is unique."""
    return f"{publication_name(group)}-append"


def used_by(group: GroupConfig) -> str:
    """The publication that a group's stream uses: the named one, or its own."""
    return group.publication or publication_name(group.name)


def parts(schemas: Sequence[TableSchema]) -> tuple[list[tuple[int, TableId]], list[TableSchema]]:
    """Tables that are published completely, and those with a row filter or column list."""
    narrowed = [schema for schema in schemas if schema.where is not None or schema.only]
    return [(schema.oid, schema.id) for schema in schemas if schema not in narrowed], narrowed


def ensure(
    conn: Connection, name: str, tables: Collection[tuple[int, TableId]], narrowed: Sequence[TableSchema] = (), *,
    append: bool = False, mark: str | None = None, refused: dict[int, Wal2LakeError] | None = None,
) -> bool:  # fmt: skip
    """Make the publication contain exactly these tables, completely or in part. Returns whether it was changed.

    Tables that PostgreSQL refuses are put into `refused` with the reason and the others are published; without it, the
    first one raises. Raises SourceBusy if others have locked a table, SourceAltered if they have dropped or renamed
    one, OtherInstallation if the publication has the mark of another one. `append`: no updates and deletes.
    """
    wanted = dict(tables)
    with conn.transaction():
        wait_briefly(conn)
        with explained("reading", f"publication {name}"):
            row = conn.execute(query("publication"), {"name": name}).fetchone()
        changed = row is None
        if row is None:
            _create(conn, name, append)
            row = conn.execute(query("publication"), {"name": name}).fetchone()
            assert row is not None
        oid, all_tables, complete, via_root, generated, appends, comment = row
        require_own(name, comment, mark)
        if mark is not None and comment is None:
            with explained("altering", f"publication {name}"):
                statement = sql.SQL("COMMENT ON PUBLICATION {} IS {}")
                conn.execute(statement.format(sql.Identifier(name), sql.Literal(mark)))
        if all_tables:
            raise SourceRefused(
                operation="using", object=f"publication {name}", cause="it is FOR ALL TABLES",
                remedy=f"DROP PUBLICATION {identifier(name)};",
            )  # fmt: skip
        right = (appends if append else complete) and not via_root
        if refused is not None and not append:
            refused |= updates_refused(conn, wanted)
            wanted = {table: id for table, id in wanted.items() if table not in refused}
        changed |= _set_options(conn, name, right, generated, append)
        changed |= _set_tables(conn, name, oid, wanted, {schema.oid for schema in narrowed}, refused)
        for schema in narrowed:
            try:
                changed |= _set_part(conn, name, oid, schema)
            except _PASSING:
                raise
            except SourceError as error:
                if refused is None:
                    raise
                refused[schema.oid] = error
        if refused is not None and narrowed and not append:
            # Only PostgreSQL knows which columns a filter uses, once it is published.
            ids = {schema.oid: schema.id for schema in narrowed}
            unsafe = updates_refused(conn, ids, name)
            _drop_tables(conn, name, [ids[table] for table in unsafe if table not in refused])
            refused |= unsafe
        return changed


FORGOTTEN_UNTIL = {14: 18, 15: 13, 16: 9, 17: 5}
"""the minor version of each major from which walsenders notice tables that are added to a publication"""


def must_renew(server_version: int) -> bool:
    """Whether an added table must be added again when every transaction that was open at that time has ended.

    A walsender that decodes such a transaction afterwards caches for good that the table is not published.
    """
    major, minor = divmod(server_version, 10000)
    return minor < FORGOTTEN_UNTIL.get(major, 0)


def renew(
    conn: Connection, name: str, tables: Collection[tuple[int, TableId]], narrowed: Sequence[TableSchema]
) -> None:
    """Drop tables from a publication and add them again in one transaction, which invalidates walsenders' caches.

    Other sessions never see the publication without them.
    """
    ids = [id for _, id in tables]
    with conn.transaction():
        wait_briefly(conn)
        _drop_tables(conn, name, [*ids, *(schema.id for schema in narrowed)])
        if ids:
            _add(conn, name, ids)
        for schema in narrowed:
            _add_part(conn, name, schema)


def add(conn: Connection, name: str, table: TableId | TableSchema, append: bool, mark: str | None) -> None:
    """Have a table in a publication, in the caller's transaction; the publication is made if there is none."""
    with explained("reading", f"publication {name}"):
        row = conn.execute(query("publication"), {"name": name}).fetchone()
    if row is None:
        ensure(conn, name, (), append=append, mark=mark)
    else:
        require_own(name, row[-1], mark)
    id = table.id if isinstance(table, TableSchema) else table
    if id in names_in(conn, name).values():
        return
    if isinstance(table, TableSchema) and (table.only or table.where is not None):
        _add_part(conn, name, table)
    else:
        _add(conn, name, [id])


def take_out(conn: Connection, name: str, id: TableId) -> None:
    """Have a table not in a publication, in the caller's transaction."""
    if id in names_in(conn, name).values():
        _drop_tables(conn, name, [id])


def require_own(name: str, comment: str | None, mark: str | None) -> None:
    """Raises OtherInstallation if a publication has the mark of another installation."""
    if is_mark(comment) and comment != mark:
        raise OtherInstallation(
            object=f"publication {name}", place="another one", remedy="give the group another name in [[groups]]"
        )


def drop(conn: Connection, name: str, mark: str | None = None, force: bool = False) -> None:
    """Drop a publication. Raises OtherInstallation if it is another installation's, unless by force.

    Raises SourceBusy if another session is altering it, or dropping one of its tables.
    """
    with conn.transaction():
        wait_briefly(conn)
        with explained("reading", f"publication {name}"):
            row = conn.execute(query("publication"), {"name": name}).fetchone()
        if row is not None and not force:
            require_own(name, row[-1], mark)
        try:
            with explained("dropping", f"publication {name}"):
                conn.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
        except SourceBusy as error:
            raise SourceBusy(
                operation="dropping",
                object=f"publication {name}",
                cause="another session is altering it, or dropping one of its tables",
                remedy="when that transaction has ended, run the command again; an active run repeats it",
            ) from error


@contextmanager
def _of_tables(operation: str, object: str, remedy: str | None = None) -> Iterator[None]:
    """As `explained`, for statements that name tables: a table may have been dropped or renamed meanwhile."""
    with explained(operation, object, remedy):
        try:
            yield
        except _GONE as error:
            raise SourceAltered(operation=operation, object=object) from error


def _options(conn: Connection, append: bool) -> sql.Composed:
    actions = "insert, truncate" if append else "insert, update, delete, truncate"
    options = sql.SQL("publish = {}, publish_via_partition_root = false").format(sql.Literal(actions))
    if conn.info.server_version >= GENERATED_PUBLISHED_SINCE:
        return options + sql.SQL(", publish_generated_columns = stored")
    return options


def _create(conn: Connection, name: str, append: bool) -> None:
    role, database = identifier(conn.info.user), identifier(conn.info.dbname)
    with explained("creating", f"publication {name}", f"GRANT CREATE ON DATABASE {database} TO {role};"):
        conn.execute(sql.SQL("CREATE PUBLICATION {} WITH ({})").format(sql.Identifier(name), _options(conn, append)))
    log.info("publication %s created", name)


def _set_options(conn: Connection, name: str, right: bool, generated: str, append: bool) -> bool:
    if right and (conn.info.server_version < GENERATED_PUBLISHED_SINCE or generated == "s"):
        return False
    with explained("altering", f"publication {name}"):
        conn.execute(sql.SQL("ALTER PUBLICATION {} SET ({})").format(sql.Identifier(name), _options(conn, append)))
    return True


def filter_columns(conn: Connection, schema: TableSchema) -> tuple[str, ...]:
    """The columns that a table's row filter uses, found by a trial publication that is rolled back."""
    name = f"wal2lake_check_{secrets.token_hex(8)}"
    found: tuple[str, ...] = ()
    with conn.transaction(force_rollback=True):
        with explained("trying", f"a publication of {schema.id}"):
            conn.execute("SET LOCAL lock_timeout = '5s'")
            conn.execute(sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(name)))
        _add_part(conn, name, schema)
        with explained("reading", f"the row filter of {schema.id}"):
            conn.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(sql.Identifier(name), _list([schema.id])))
            conn.execute(
                sql.SQL("ALTER PUBLICATION {} ADD TABLE {} WHERE {}").format(
                    sql.Identifier(name), _list([schema.id]), sql.SQL(filtered(schema.where))
                )
            )
            found = tuple(column for (column,) in conn.execute(query("filter_columns"), {"name": name}))
    return found


def _set_part(conn: Connection, name: str, oid: int, schema: TableSchema) -> bool:
    """Publish a part of a table. Only PostgreSQL can compare two conditions."""
    changed = False
    with conn.transaction() as attempt:
        before = _entry(conn, name, oid, schema)
        if before is not None:
            _drop_tables(conn, name, [schema.id])
        _add_part(conn, name, schema)
        changed = before != _entry(conn, name, oid, schema)
        if not changed:
            raise psycopg.Rollback(attempt)
    if changed:
        log.info("publication %s: added a part of %s", name, schema.id)
    return changed


def _entry(conn: Connection, name: str, oid: int, schema: TableSchema) -> tuple[object, ...] | None:
    with explained("reading", f"publication {name}"):
        return conn.execute(query("publication_entry"), {"publication": oid, "table": schema.oid}).fetchone()


def _add_part(conn: Connection, name: str, schema: TableSchema) -> None:
    columns = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Identifier, schema.names if schema.only else ())))
    condition = sql.SQL("WHERE {}").format(sql.SQL(filtered(schema.where)))
    statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {} {} {}").format(
        sql.Identifier(name), _list([schema.id]), columns if schema.only else sql.SQL(""),
        condition if schema.where is not None else sql.SQL(""),
    )  # fmt: skip
    remedy = owning_remedy(conn, schema.id)
    with _of_tables("publishing", str(schema.id), remedy):
        try:
            with conn.transaction():
                conn.execute(statement)
        except psycopg.Error as error:
            if schema.where is not None and _about_the_statement(error):
                raise selection.refused_filter(schema.id, error.diag.message_primary or "no reason given") from error
            raise


def _about_the_statement(error: psycopg.Error) -> bool:
    # 42501 is a privilege; other codes of class 42 are about the statement's text, 0A about missing features.
    state = error.sqlstate or ""
    return state != "42501" and state[:2] in ("42", "0A", "22")


def owning_remedy(conn: Connection, table: TableId) -> str:
    """SQL that makes the role the owner of a table, or a member of the owner."""
    with explained("reading", f"the owner of {table}"):
        row = conn.execute(query("owner"), {"schema": table.schema, "name": table.name}).fetchone()
    return owner_remedy(conn.info.user, table, *row) if row is not None else "run: wal2lake check"


def _set_tables(
    conn: Connection, name: str, oid: int, wanted: dict[int, TableId], narrowed: set[int],
    refused: dict[int, Wal2LakeError] | None,
) -> bool:  # fmt: skip
    with explained("reading", f"publication {name}"):
        rows = conn.execute(query("publication_tables"), {"publication": oid}).fetchall()
    # A table that must not have a row filter or column list is dropped and added again.
    surplus = {
        row[0]: TableId(row[1], row[2])
        for row in rows
        if row[0] not in narrowed and (row[0] not in wanted or row[3])
    }  # fmt: skip
    present = {row[0] for row in rows} - set(surplus)
    missing = {table: id for table, id in wanted.items() if table not in present}
    _drop_tables(conn, name, list(surplus.values()))
    added = _add_all(conn, name, missing, refused)
    if surplus or added:
        log.info("publication %s: %d tables added, %d dropped", name, added, len(surplus))
    return bool(surplus or added)


def _add_all(conn: Connection, name: str, tables: dict[int, TableId], refused: dict[int, Wal2LakeError] | None) -> int:
    """Add tables and return how many: by one statement, and if PostgreSQL refuses that, one by one."""
    if not tables:
        return 0
    try:
        _add(conn, name, list(tables.values()))
        return len(tables)
    except _PASSING:
        raise
    except SourceError as error:
        if refused is None:
            raise
        if len(tables) == 1:
            refused |= dict.fromkeys(tables, error)
            return 0
    return sum(_add_all(conn, name, {oid: id}, refused) for oid, id in tables.items())


def _add(conn: Connection, name: str, tables: Sequence[TableId]) -> None:
    object = f"publication {name}"
    try:
        with _of_tables("adding tables to", object), conn.transaction():
            conn.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), _list(tables)))
    except SourceRefused as error:
        cause, remedy = error.fields["cause"], owning_remedy(conn, tables[0])
        object = str(tables[0]) if len(tables) == 1 else object
        raise SourceRefused(operation="publishing", object=object, cause=cause, remedy=remedy) from error


def _drop_tables(conn: Connection, name: str, tables: Sequence[TableId]) -> None:
    if tables:
        with _of_tables("altering", f"publication {name}"):
            conn.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(sql.Identifier(name), _list(tables)))


def _list(tables: Collection[TableId]) -> sql.Composed:
    # ONLY: a table that inherits from another is a separate table.
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(id.schema, id.name)) for id in tables)
