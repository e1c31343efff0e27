"""The SQL that a DBA runs for a mirror: a role that owns no table, and what it needs to read and capture changes.

    wal, poll    REPLICATION, a publication, SELECT
    trigger      SELECT and TRIGGER, a schema for buffers, a function that has triggers fire always
    auto         both

It grants what a mirror uses and nothing more. Tables are chosen by the server, with the names and patterns of the
configuration, so that the script needs no connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..config import Config, GroupConfig, role_and_database
from ..quoting import dollar_quoted, identifier, literal, toml
from ..schema import split_identifier
from ..source.tables import patterns as published_patterns
from ..source.triggers import create_enabling, create_place

DEFAULT_ROLE = "wal2lake"
CAPTURES = ("wal", "poll", "trigger", "auto")


class Service(StrEnum):
    """Who runs the server, which decides how a role may replicate."""

    PLAIN = "plain"
    RDS = "rds"
    CLOUD_SQL = "cloud-sql"
    AZURE = "azure"
    SUPABASE = "supabase"


_NOTES = {
    Service.PLAIN: "Run it as a superuser.",
    Service.RDS: "Run it as a member of rds_superuser. The parameter rds.logical_replication must be 1.",
    Service.CLOUD_SQL: "Run it as a member of cloudsqlsuperuser. The flag cloudsql.logical_decoding must be on.",
    Service.AZURE: "Run it as a member of azure_pg_admin. The server parameter wal_level must be logical.",
    Service.SUPABASE: "Run it as postgres. Connect wal2lake directly to the database, not to the pooler.",
}
_PLAIN_NOTE = "Run it as a superuser, or as an owner of the tables who may create roles."
_OWNERS = " There, publishing and granting need the owner of the tables or a member of the owner's role."


@dataclass(frozen=True)
class RoleGroup:
    """A group of the configuration: its tables, and how their changes are captured."""

    name: str
    publication: str
    tables: Sequence[str]
    exclude: Sequence[str]
    capture: str = "wal"

    @property
    def publishes(self) -> bool:
        return self.capture != "trigger"

    @property
    def triggers(self) -> bool:
        return self.capture in ("trigger", "auto")


@dataclass(frozen=True)
class RoleRequest:
    """The role to create, and its purpose."""

    role: str
    database: str | None
    groups: Sequence[RoleGroup]
    own_state: bool
    """the state store is in this database"""
    service: Service = Service.PLAIN


def dba_publication(group: str) -> str:
    """The name of the publication that a DBA makes for a group; wal2lake's own have another one."""
    return f"wal2lake_{group}_tables"


def role_script(request: RoleRequest) -> str:
    """The statements, with comments. It can be run again."""
    return "\n".join(_lines(request)) + "\n"


def _lines(request: RoleRequest) -> Iterator[str]:
    role = identifier(request.role)
    managed = request.service is not Service.PLAIN
    publishes = any(group.publishes for group in request.groups)
    captures = ", ".join(toml(each) for each in dict.fromkeys(group.capture for group in request.groups))
    yield f"-- A role for wal2lake that owns no table (capture = {captures})."
    yield f"-- {_NOTES[request.service] if publishes else _PLAIN_NOTE}{_OWNERS if managed else ''}"
    yield ""
    what = "It makes and reads replication slots." if publishes else "It installs triggers."
    yield f"-- {what} Give it a password, in psql with: \\password {role}"
    exists = f"SELECT FROM pg_roles WHERE rolname = {literal(request.role)}"
    yield _do(f"BEGIN IF NOT EXISTS ({exists}) THEN CREATE ROLE {role}; END IF; END")
    if not publishes:
        yield f"ALTER ROLE {role} LOGIN;"
    elif request.service is Service.RDS:
        yield f"ALTER ROLE {role} LOGIN;"
        yield f"GRANT rds_replication TO {role};"
    else:
        yield f"ALTER ROLE {role} LOGIN REPLICATION;"
    database = "current_database()" if request.database is None else literal(request.database)
    yield _do(f"BEGIN EXECUTE format('GRANT CONNECT ON DATABASE %I TO {_in_format(role)}', {database}); END")
    for group in request.groups:
        yield ""
        name = f"Group {_one_line(group.name)}"
        if group.publishes:
            yield f"-- {name}: tables whose updates PostgreSQL accepts when they are published."
            yield _do(_publish(group))
        copies = "The initial copy reads the tables and their partitions, and those that come"
        if group.triggers:
            yield f"-- {name}: {copies[0].lower()}{copies[1:]}. TRIGGER lets the role run"
            yield "-- functions in the statements of those who write the tables, with their rights."
        else:
            yield f"-- {copies}."
        yield _do(_grants(_published(group) if group.publishes else _chosen(group), role, group.triggers))
    yield ""
    if request.own_state:
        yield "-- The state store. Not needed if [state] dsn names another database."
        yield from _as_member(role, managed, [f"CREATE SCHEMA IF NOT EXISTS wal2lake AUTHORIZATION {role};"])
    if any(group.triggers for group in request.groups):
        yield "-- Where triggers put what they capture."
        place = create_place(role).replace("CREATE SCHEMA", "CREATE SCHEMA IF NOT EXISTS")
        yield from _as_member(role, managed, [place, *create_enabling(role)])
    yield ""
    yield "-- In wal2lake.toml:"
    for group in request.groups:
        yield "--   [[groups]]"
        yield f"--   name = {toml(group.name)}"
        if group.publishes:
            yield f"--   publication = {toml(group.publication)}"
        if group.capture != "wal":
            yield f"--   capture = {toml(group.capture)}"


def _as_member(role: str, managed: bool, statements: Sequence[str]) -> Iterator[str]:
    if not managed:
        yield from statements
        return
    # Without superuser, a role can create objects for another one only while it is a member of it.
    yield f"GRANT {role} TO CURRENT_USER;"
    yield from statements
    yield f"REVOKE {role} FROM CURRENT_USER;"


def _is_chosen(group: RoleGroup) -> str:
    """The condition for a table c in schema n to be one of the group."""
    chosen = " OR ".join(_condition(pattern) for pattern in group.tables)
    left_out = "".join(f" AND NOT ({_condition(pattern)})" for pattern in group.exclude)
    return f"""c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'wal2lake', 'wal2lake_changes')
    AND ({chosen}){left_out}"""


def _publish(group: RoleGroup) -> str:
    name = literal(group.publication)
    return f"""
DECLARE listed text;
BEGIN
  SELECT string_agg(format('%I.%I', n.nspname, c.relname), ', ' ORDER BY n.nspname, c.relname) INTO listed
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE {_is_chosen(group)}
    AND NOT EXISTS (
      SELECT FROM pg_class h
      WHERE h.oid IN (SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid)) AND h.relkind <> 'p'
        AND h.relreplident <> 'f' AND NOT EXISTS (
          SELECT FROM pg_index i WHERE i.indrelid = h.oid AND i.indisvalid AND i.indimmediate
            AND CASE h.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END));
  IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = {name}) THEN
    IF listed IS NULL THEN
      RAISE EXCEPTION 'no table of the group can be published';
    END IF;
    EXECUTE format('CREATE PUBLICATION %I FOR TABLE ', {name}) || listed;
  END IF;
END"""  # noqa: S608 - names are quoted


def _published(group: RoleGroup) -> str:
    name = literal(group.publication)
    return f"""
    SELECT relid FROM pg_get_publication_tables({name})
    UNION SELECT pg_partition_root(relid) FROM pg_get_publication_tables({name})
    UNION SELECT prrelid FROM pg_publication_rel JOIN pg_publication p ON p.oid = prpubid WHERE pubname = {name}
  """  # noqa: S608 - names are quoted


def _chosen(group: RoleGroup) -> str:
    return f"""
    WITH chosen AS (
      SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE {_is_chosen(group)}
    )
    SELECT oid AS relid FROM chosen
    UNION SELECT t.relid FROM chosen, pg_partition_tree(chosen.oid) t
  """  # noqa: S608 - names are quoted


def _grants(tables: str, role: str, triggers: bool) -> str:
    """`tables`: a query for their oids."""
    role, privileges = _in_format(role), "SELECT, TRIGGER" if triggers else "SELECT"
    return f"""
DECLARE one record;
BEGIN
  CREATE TEMP TABLE wal2lake_read ON COMMIT DROP AS
  SELECT DISTINCT c.oid, c.relkind, c.relowner, n.nspname FROM ({tables}) t
  JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace;
  FOR one IN SELECT DISTINCT nspname FROM wal2lake_read LOOP
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO {role}', one.nspname);
  END LOOP;
  FOR one IN SELECT oid FROM wal2lake_read LOOP
    EXECUTE format('GRANT {privileges} ON %s TO {role}', one.oid::regclass);
  END LOOP;
  FOR one IN SELECT DISTINCT nspname, pg_get_userbyid(relowner) AS owner FROM wal2lake_read WHERE relkind = 'p' LOOP
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I GRANT {privileges} ON TABLES TO {role}',
                   one.owner, one.nspname);
  END LOOP;
  DROP TABLE wal2lake_read;
END"""  # noqa: S608 - names are quoted


def _condition(pattern: str) -> str:
    parts = split_identifier(pattern)
    schema, name = [("public", True), *parts][-2:]
    return f"(n.nspname LIKE {_like(*schema)} AND c.relname LIKE {_like(*name)})"


def _like(part: str, quoted: bool) -> str:
    text = part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return literal(text if quoted else text.replace("*", "%").replace("?", "_"))


def _in_format(quoted: str) -> str:
    """A quoted name inside the text of a format."""
    return quoted.replace("%", "%%").replace("'", "''")


def _do(body: str) -> str:
    return f"DO {dollar_quoted(body)};"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def requested(
    config: Config | None, role: str | None, capture: str | None = None, service: Service = Service.PLAIN
) -> RoleRequest:
    """What a configuration needs; without one, that of the tables of schema public."""
    found = role_and_database(config.source.dsn.get_secret_value()) if config is not None else (None, None)
    groups = config.groups if config is not None else (GroupConfig(name="default"),)
    return RoleRequest(
        role=role or found[0] or DEFAULT_ROLE,
        database=found[1],
        groups=[
            RoleGroup(
                group.name, group.publication or dba_publication(group.name), published_patterns(group),
                group.exclude, capture or ("wal" if group.capture == "auto" else group.capture),
            )
            for group in groups
        ],
        own_state=config is None or config.state.dsn is None,
        service=service,
    )  # fmt: skip
