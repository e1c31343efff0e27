"""Preflight judgements: facts in, findings out. Pure.

A finding names an object, the consequence for a run, and the fix as a command to paste. Findings that block nothing are
warnings or notes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..java import OLDEST_JAVA, Java
from ..quoting import identifier, literal, shell, toml
from ..schema import ReplicaIdentity, TableId, TableSchema
from ..source.tables import OwnObject, RefusedHeap, fix_of, index_fix, owner_remedy, read_grants
from ..types import STRING
from .findings import Finding, GroupSlot, LakeFacts, Severity
from .role_sql import dba_publication

if TYPE_CHECKING:
    from ..source import ServerFacts
    from ..source.tables import HeapFacts, UnreadableLater
    from ..state import GroupSpec, TableSpec

STATE_SCHEMA = "schema wal2lake"
OLDEST_SERVER = 140000
FAILOVER_SINCE = 170000
SMALL_KEEP_MB = 1024
_NATURAL_TEXT = ("text", "character varying", "character", "name", '"char"', "json", "jsonb", "uuid", "xml", "citext")
_SHOWN = 3


def judge_server(server: ServerFacts, over_socket: bool, reads_wal: bool = True) -> Iterator[Finding]:
    """`reads_wal`: whether any group has a slot."""
    if over_socket:
        yield Finding(
            "source.dsn", Severity.BLOCKS,
            "connects over a Unix socket; Spark reads the initial copy by JDBC, over TCP",
            "name a host: postgresql://user:password@127.0.0.1:5432/database",
        )  # fmt: skip
    if server.version < OLDEST_SERVER:
        yield Finding(
            "server", Severity.BLOCKS, f"PostgreSQL {server.version_text} is too old", "upgrade it to 14 or newer"
        )
    if server.in_recovery:
        yield Finding(
            "server", Severity.BLOCKS, "it is a standby, where no publication can be created",
            "name the primary in [source] dsn",
        )  # fmt: skip
    if not reads_wal:
        return
    if server.wal_level != "logical":
        yield Finding(
            "wal_level", Severity.BLOCKS, f"is {server.wal_level}: changes can't be read from the WAL",
            "ALTER SYSTEM SET wal_level = 'logical'; -- then restart PostgreSQL", sql=True,
        )  # fmt: skip
    yield _keep_size(server.max_slot_wal_keep_mb)


def _keep_size(megabytes: int) -> Finding:
    if megabytes < 0:
        return Finding(
            "max_slot_wal_keep_size", Severity.NOTES,
            "is unlimited: while no run is active, WAL is kept and can fill the server's disk",
            "watch retained_wal_bytes in: wal2lake status --json",
        )  # fmt: skip
    return Finding(
        "max_slot_wal_keep_size", Severity.WARNS if megabytes < SMALL_KEEP_MB else Severity.NOTES,
        f"is {megabytes} MB: PostgreSQL invalidates a slot that falls further behind, and its tables must be re-copied",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();", sql=True,
    )  # fmt: skip


def judge_room(server: ServerFacts, slots: Sequence[GroupSlot], copies: int = 1) -> Iterator[Finding]:
    """Each group needs a slot and a walsender, and each running copy one more of both. Polled slots need neither."""
    streamed = [slot for slot in slots if not slot.polled]
    copying = copies if streamed or not slots else 0
    wanted_slots = sum(not slot.exists for slot in slots) + copying
    wanted_senders = sum(slot.holder is None for slot in streamed) + copying
    for name, used, most, wanted in (
        ("max_replication_slots", server.slots_used, server.slots_max, wanted_slots),
        ("max_wal_senders", server.senders_used, server.senders_max, wanted_senders),
    ):
        if wanted and most - used < wanted:
            yield Finding(
                name, Severity.BLOCKS, f"{used} of {most} are in use, and {wanted} more are needed",
                f"ALTER SYSTEM SET {name} = {used + wanted}; -- then restart PostgreSQL", sql=True,
            )  # fmt: skip


def judge_slot(slot: GroupSlot) -> Iterator[Finding]:
    name = f"slot {slot.slot}"
    # The slot may be in use by another program, so its removal is not part of the script.
    drop = f"SELECT pg_drop_replication_slot({literal(slot.slot)});"
    if slot.refused is not None:
        yield Finding(
            f"group {slot.group}", Severity.BLOCKS, f"needs a replication connection, which is refused: {slot.refused}",
            'let it in in pg_hba.conf ("all" does not mean replication where a database is named), or read the slot '
            'through SQL: [[groups]] capture = "poll"',
        )  # fmt: skip
    if not slot.exists:
        if slot.continued:
            yield Finding(
                name, Severity.BLOCKS, "is gone: changes since the change log's last position were not captured",
                "wal2lake tables resync --all",
            )  # fmt: skip
    elif not slot.usable:
        yield Finding(
            name, Severity.BLOCKS, "belongs to another database or plugin, so the group can't use it: rename the group "
            f"{slot.group}, or drop the slot if nothing uses it", drop,
        )  # fmt: skip
    elif slot.lost:
        yield Finding(
            name, Severity.BLOCKS, f"{slot.lost}: changes since then were not captured", "wal2lake tables resync --all"
        )
    elif slot.continued is None:
        yield Finding(
            name, Severity.BLOCKS,
            "exists, but this lake has no change log: it is of another mirror, or is a leftover; "
            f"rename the group {slot.group}, or drop the slot if no other mirror uses it", drop,
        )  # fmt: skip
    elif slot.holder is not None and slot.holder.startswith("wal2lake"):
        yield Finding(name, Severity.NOTES, "a run of this group is active")
    elif slot.holder is not None:
        yield Finding(
            name, Severity.WARNS, f"is being read by another program ({slot.holder or 'no name'}): a run has to wait",
            "stop that program, or rename the group",
        )  # fmt: skip


def judge_role(
    server: ServerFacts, role: str, database: str, own: Sequence[OwnObject], to_make: Sequence[str],
    reads_wal: bool = True,
) -> Iterator[Finding]:  # fmt: skip
    """`role` and `database` are quoted. `own`: existing objects; `to_make`: objects that are still to be created.

    `reads_wal`: whether any group has a slot.
    """
    name = f"role {server.role}"
    if reads_wal and not server.may_replicate:
        fix = f"GRANT rds_replication TO {role};" if server.on_rds else f"ALTER ROLE {role} REPLICATION;"
        yield Finding(name, Severity.BLOCKS, "may not make or read replication slots", fix, sql=True)
    if [*to_make] == [STATE_SCHEMA] and not server.may_create_in_database:
        yield Finding(
            name, Severity.BLOCKS, f"may not create {STATE_SCHEMA} in database {server.database}",
            f"CREATE SCHEMA wal2lake AUTHORIZATION {role};", sql=True,
        )  # fmt: skip
    elif to_make and not server.may_create_in_database:
        yield Finding(
            name, Severity.BLOCKS, f"may not create {' and '.join(to_make)} in database {server.database}",
            f"GRANT CREATE ON DATABASE {database} TO {role};", sql=True,
        )  # fmt: skip
    for each in own:
        if not each.owned:
            yield Finding(
                f"{each.kind.lower()} {'.'.join(each.name)}", Severity.BLOCKS,
                f"belongs to {each.owner}: only an owner can change it",
                f"ALTER {each.kind} {identifier(*each.name)} OWNER TO {role};", sql=True,
            )  # fmt: skip


def judge_publishing(group: str, owners: Collection[str], tables: Sequence[TableId], made: bool) -> Iterator[Finding]:
    """A group whose tables the role may not publish. `tables`: those that a DBA can publish; `made`: it is done."""
    if not owners or not tables:
        return
    name = dba_publication(group)
    listed = ", ".join(identifier(table.schema, table.name) for table in tables)
    create = f"CREATE PUBLICATION {identifier(name)} FOR TABLE {listed};"
    yield Finding(
        f"group {group}", Severity.NOTES, f"some of its tables belong to {', '.join(sorted(owners))}: if a DBA makes "
        f"the publication and the group has publication = {toml(name)}, the role need not own them",
        f"publication = {toml(name)}" if made else create, sql=not made, in_script=not made,
    )  # fmt: skip


def judge_partitions_to_come(places: Iterable[UnreadableLater], role: str) -> Iterator[Finding]:
    """Partitions that an owner will add: can they be read, and get triggers? `role` is quoted."""
    why = {
        "SELECT": "can't be read by the role, so that they could not be copied",
        "TRIGGER": "can't get triggers from the role, so that their changes could not be captured",
    }
    for place in places:
        schema, owner, given = identifier(place.schema), identifier(place.owner), place.privilege
        yield Finding(
            f"partitions of {place.table}", Severity.WARNS, f"those that {place.owner} will add {why[place.privilege]}",
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT {given} ON TABLES TO {role};",
            sql=True, in_script=True,
        )  # fmt: skip


def judge_heap(heap: HeapFacts, server: ServerFacts) -> Iterator[Finding]:
    """Whether a table that will be published can be read and published."""
    name, role = str(heap.id), identifier(server.role)
    if heap.kind == "f":
        yield Finding(
            name, Severity.BLOCKS, "is a foreign table as a partition, which can't be published: exclude its root, or "
            "detach it", f"exclude = [{toml(str(heap.root))}]",
        )  # fmt: skip
        return
    if heap.persistence == "u":
        yield Finding(
            name, Severity.BLOCKS, "is unlogged: its changes are not in the WAL",
            f"ALTER TABLE {heap.sql_name} SET LOGGED;", sql=True,
        )  # fmt: skip
    for object, grant in read_grants(heap, role).items():
        what = "may not be used" if object.startswith("schema ") else "may not be read"
        yield Finding(object, Severity.BLOCKS, f"{what} by role {server.role}: nothing can be copied", grant, sql=True)
    if not heap.owned:
        # No DBA makes the role a member of the owner's: the script has a publication instead.
        yield Finding(
            str(heap.root), Severity.BLOCKS, f"belongs to {heap.owner}: only an owner can add it to a publication; if "
            "a DBA makes the publication, the role need not own it",
            owner_remedy(server.role, heap.root, heap.owner, heap.owner_superuser, server.inherits, server.version),
            sql=True, in_script=False,
        )  # fmt: skip
    if heap.row_security:
        yield Finding(
            name, Severity.BLOCKS, "has row security that hides rows from this role, so a copy would not be complete",
            f"ALTER ROLE {role} BYPASSRLS;", sql=True,
        )  # fmt: skip


def judge_updates(table: TableId, heaps: Sequence[RefusedHeap], ours: bool) -> Iterator[Finding]:
    """Tables on which PostgreSQL refuses updates once they are published. `ours`: wal2lake made the publication."""
    if not heaps:
        return
    why = heaps[0].why if heaps[0].id == table else f"of its partition {heaps[0].id}, {heaps[0].why}"
    consequence = f"{why}; PostgreSQL refuses UPDATE and DELETE on it while it is published"
    if ours:
        consequence += (
            f". It is not mirrored until it has a replica identity, or, if its rows are only ever inserted: "
            f"[tables.{toml(str(table))}] append_only = true"
        )
    yield Finding(str(table), Severity.BLOCKS if ours else Severity.WARNS, consequence, fix_of(table, heaps), sql=True)


def judge_wanted_twice(groups: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Tables in more than one group; `groups` has the groups of each table."""
    for table, names in groups.items():
        if len(names) > 1:
            yield Finding(
                table, Severity.BLOCKS, f"is named by groups {' and '.join(names)}, and a table can be in one only",
                f"exclude it in all but one of them: exclude = [{toml(table)}]",
            )  # fmt: skip


def judge_groups(configured: Collection[str], specs: Iterable[GroupSpec], ran: Iterable[str]) -> Iterator[Finding]:
    """Groups that differ between configuration and state store, and what a run does with them."""
    known = set(configured)
    for spec in specs:
        name = f"group {spec.name}"
        known |= {spec.name} if spec.made else set()
        if spec.dropping:
            yield Finding(name, Severity.NOTES, "will be dropped by the next run, with its slot and publication")
        elif not spec.enabled:
            yield Finding(
                name, Severity.WARNS, "is disabled: a run does not start it, and its slot, if it has one, holds WAL",
                f"wal2lake groups enable {spec.name}",
            )  # fmt: skip
        elif spec.made and spec.name in configured:
            yield Finding(
                name, Severity.WARNS, "is configured and was also made by a command: a run uses the configuration",
                "remove it from [[groups]] to use the other one",
            )  # fmt: skip
    for left in sorted(set(ran) - known):
        yield Finding(
            f"group {left}", Severity.WARNS, "has run, and is neither configured nor made by a command: a run does not "
            "start it, and its slot holds WAL", f"wal2lake groups drop {left}",
        )  # fmt: skip


def judge_removed(matched: Mapping[int, str], specs: Iterable[TableSpec]) -> Iterator[Finding]:
    """Tables that the configuration names and a command has removed."""
    for spec in specs:
        if spec.wanted is False and spec.oid in matched:
            name = matched[spec.oid]
            yield Finding(
                name, Severity.NOTES, "was removed by a command: a run does not mirror it, although the configuration "
                "names it", f"wal2lake tables add {shell(name)}",
            )  # fmt: skip


def judge_failover(wanted: bool, server_version: int) -> Iterator[Finding]:
    if wanted and server_version < FAILOVER_SINCE:
        yield Finding(
            "[source] failover", Severity.WARNS, "PostgreSQL before 17 has no failover slots: it has no effect",
            "leave it out; after a failover, tables have to be re-copied",
        )  # fmt: skip


def judge_types(schemas: Iterable[TableSchema]) -> Iterator[Finding]:
    """One note for each type that is stored as text although it is not a text type in PostgreSQL."""
    columns: dict[str, list[str]] = defaultdict(list)
    for schema in schemas:
        for column in schema.columns:
            if column.lake == STRING and column.type_name.partition("(")[0] not in _NATURAL_TEXT:
                columns[column.type_name].append(f"{schema.id}.{column.name}")
    for type_name, names in sorted(columns.items()):
        rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        several = " with more than one dimension" if type_name.endswith("[]") else ""
        fix = ""
        if type_name.startswith("numeric"):
            fix = 'for a decimal: [tables."<table>"] types = { <column> = "decimal(20,4)" }'
        where = ", ".join(names[:_SHOWN]) + rest
        yield Finding(f"type {type_name}", Severity.NOTES, f"is stored as PostgreSQL's text{several}: {where}", fix)


def judge_generated(columns: Mapping[str, Sequence[str]], server_version: int) -> Iterator[Finding]:
    """Generated columns that are not in the stream, by table."""
    reason = "virtual ones are not published" if server_version >= 180000 else "PostgreSQL before 18 publishes none"
    for table, names in columns.items():
        yield Finding(table, Severity.NOTES, f"generated columns are left out ({reason}): {', '.join(names)}")


def judge_columns(schema: TableSchema, ours: bool = True) -> Iterator[Finding]:
    """Whether a column list fits the replica identity. `ours`: of a publication that wal2lake made."""
    if schema.only and schema.identity is ReplicaIdentity.FULL:
        yield Finding(
            str(schema.id), Severity.BLOCKS if ours else Severity.WARNS,
            "it has a column list, which replica identity FULL does not allow: PostgreSQL refuses UPDATE and DELETE "
            "on it while it is published",
            f"ALTER TABLE {_sql_name(schema)} REPLICA IDENTITY DEFAULT;", sql=True,
        )  # fmt: skip


def judge_filter(schema: TableSchema, columns: Sequence[str]) -> Iterator[Finding]:
    """Whether a row filter fits the replica identity. `columns`: those that the filter uses."""
    outside = [name for name in columns if name not in schema.key]
    if schema.identity is ReplicaIdentity.FULL or not schema.key or not outside:
        return
    name = _sql_name(schema)
    fix = f"ALTER TABLE {name} REPLICA IDENTITY FULL;"
    if schema.only:
        fix = index_fix(schema.id, [*schema.key, *outside])
    yield Finding(
        str(schema.id), Severity.BLOCKS,
        f"its row filter uses {', '.join(outside)}, which is not in its replica identity: PostgreSQL refuses "
        "UPDATE and DELETE on it while it is published",
        fix, sql=True,
    )  # fmt: skip


def judge_settings(configured: Iterable[str], wanted: Collection[str], lost: Collection[str] = ()) -> Iterator[Finding]:
    """Settings of tables in no group are probably misspelt. `lost`: those whose masks or filters have no effect."""
    for name in configured:
        if name not in wanted:
            yield Finding(
                f"[tables.{toml(name)}]", Severity.BLOCKS if name in lost else Severity.WARNS,
                "no mirrored table has this name, so its settings are not used",
                "correct the name, or remove the section",
            )  # fmt: skip


def judge_java(java: Java) -> Iterator[Finding]:
    install = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME to Java 17 or newer"
    if java.path is None:
        yield Finding("Java", Severity.BLOCKS, "is not found, and Spark needs it", install)
    elif java.major is not None and java.major < OLDEST_JAVA:
        yield Finding(
            "Java",
            Severity.BLOCKS,
            f"{java.path} is Java {java.major}, and Spark needs {OLDEST_JAVA} or newer",
            install,
        )


def judge_lake(lake: LakeFacts, source_bytes: int) -> Iterator[Finding]:
    if lake.problem is not None:
        yield Finding(
            f"lake {lake.path}", Severity.BLOCKS, f"can't be written: {lake.problem}",
            "make it writable for this user, or choose another [lake] path",
        )  # fmt: skip
    elif lake.free_bytes < source_bytes:
        yield Finding(
            f"lake {lake.path}", Severity.WARNS,
            f"has {_megabytes(lake.free_bytes)} free, and the tables take {_megabytes(source_bytes)} in PostgreSQL",
            "make room, or choose another [lake] path",
        )  # fmt: skip


def _megabytes(size: int) -> str:
    return f"{size / 1024**2:,.0f} MB"


def _sql_name(schema: TableSchema) -> str:
    return identifier(schema.id.schema, schema.id.name)


def script(findings: Iterable[Finding]) -> str:
    """An SQL script of all fixes that are SQL; the others are comments in it."""
    lines = []
    for finding in findings:
        printed = finding.blocks if finding.in_script is None else finding.in_script
        if finding.blocks or printed:
            # A name may contain a line break, which would end the comment.
            lines.append("-- " + " ".join(f"{finding.object}: {finding.consequence}".split()))
        if printed:
            lines.append(finding.fix if finding.sql else "-- no SQL: " + " ".join(finding.fix.split()))
    return "".join(f"{line}\n" for line in lines)
