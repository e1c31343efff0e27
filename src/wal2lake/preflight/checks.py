"""The preflight's judgements: facts in, findings out, nothing read and nothing written.

A finding names an object, what happens because of it, and the fix as a command to paste. What merely should be known
is a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..pgtypes import STRING
from ..quoting import identifier, literal, shell, toml
from ..schema import Identity, TableId, TableSchema
from ..source.facts import OwnObject, RefusedHeap, fix_of, index_fix, owner_remedy, read_grants
from .findings import Finding, GroupSlot, JavaFacts, LakeFacts, Level

if TYPE_CHECKING:
    from ..source.connect import ServerFacts
    from ..source.facts import HeapFacts
    from ..state import GroupSpec, TableSpec

OLDEST_SERVER = 140000
OLDEST_JAVA = 17
FAILOVER_SINCE = 170000
SMALL_KEEP_MB = 1024
_NATURAL_TEXT = ("text", "character varying", "character", "name", '"char"', "json", "jsonb", "uuid", "xml", "citext")
_SHOWN = 3


def judge_server(server: ServerFacts, over_socket: bool) -> Iterator[Finding]:
    if over_socket:
        yield Finding(
            "source.dsn", Level.BLOCKS, "connects over a Unix socket; Spark reads the initial copy by JDBC, over TCP",
            "name a host: postgresql://user:password@127.0.0.1:5432/database",
        )  # fmt: skip
    if server.version < OLDEST_SERVER:
        yield Finding(
            "server", Level.BLOCKS, f"PostgreSQL {server.version_text} is too old", "upgrade it to 14 or newer"
        )
    if server.in_recovery:
        yield Finding(
            "server", Level.BLOCKS, "it is a standby, where no publication can be made",
            "name the primary in [source] dsn",
        )  # fmt: skip
    if server.wal_level != "logical":
        yield Finding(
            "wal_level", Level.BLOCKS, f"is {server.wal_level}: changes can't be read from the WAL",
            "ALTER SYSTEM SET wal_level = 'logical'; -- then restart PostgreSQL", sql=True,
        )  # fmt: skip
    yield _keep_size(server.max_slot_wal_keep_mb)


def _keep_size(megabytes: int) -> Finding:
    if megabytes < 0:
        return Finding(
            "max_slot_wal_keep_size", Level.NOTES,
            "is unlimited: while no run is active, WAL is kept and can fill the server's disk",
            "watch retained_wal_bytes in: wal2lake status --json",
        )  # fmt: skip
    return Finding(
        "max_slot_wal_keep_size", Level.WARNS if megabytes < SMALL_KEEP_MB else Level.NOTES,
        f"is {megabytes} MB: a slot that falls further behind is given up, and its tables have to be re-copied",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();", sql=True,
    )  # fmt: skip


def judge_room(server: ServerFacts, slots: Sequence[GroupSlot], copies: int = 1) -> Iterator[Finding]:
    """Each group needs a slot and a walsender of its own, and each copy one more of both while it runs."""
    wanted_slots = sum(not slot.exists for slot in slots) + copies
    wanted_senders = sum(slot.holder is None for slot in slots) + copies
    for name, used, most, wanted in (
        ("max_replication_slots", server.slots_used, server.slots_max, wanted_slots),
        ("max_wal_senders", server.senders_used, server.senders_max, wanted_senders),
    ):
        if most - used < wanted:
            yield Finding(
                name, Level.BLOCKS, f"{used} of {most} are in use, and {wanted} more are needed",
                f"ALTER SYSTEM SET {name} = {used + wanted}; -- then restart PostgreSQL", sql=True,
            )  # fmt: skip


def judge_slot(slot: GroupSlot) -> Iterator[Finding]:
    name = f"slot {slot.slot}"
    # It may be somebody's who needs it, so it is not part of a script.
    drop = f"SELECT pg_drop_replication_slot({literal(slot.slot)});"
    if not slot.exists:
        if slot.continued:
            yield Finding(
                name, Level.BLOCKS, "is gone: changes since the change log's last position were not captured",
                "wal2lake tables resync --all",
            )  # fmt: skip
    elif not slot.usable:
        yield Finding(
            name, Level.BLOCKS, "belongs to another database or plugin, so the group can't use it: rename the group "
            f"{slot.group}, or drop the slot if nothing uses it", drop,
        )  # fmt: skip
    elif slot.lost:
        yield Finding(
            name, Level.BLOCKS, f"{slot.lost}: changes since then were not captured", "wal2lake tables resync --all"
        )
    elif slot.continued is None:
        yield Finding(
            name, Level.BLOCKS, "exists, but this lake has no change log: it is another mirror's, or a leftover; "
            f"rename the group {slot.group}, or drop the slot if no other mirror uses it", drop,
        )  # fmt: skip
    elif slot.holder is not None and slot.holder.startswith("wal2lake"):
        yield Finding(name, Level.NOTES, "a run of this group is active")
    elif slot.holder is not None:
        yield Finding(
            name, Level.WARNS, f"is being read by another program ({slot.holder or 'no name'}): a run has to wait",
            "stop that program, or rename the group",
        )  # fmt: skip


def judge_role(
    server: ServerFacts, role: str, database: str, own: Sequence[OwnObject], to_make: Sequence[str]
) -> Iterator[Finding]:
    """`role` and `database` are quoted. `own`: what was made before; `to_make`: what is still to be made."""
    name = f"role {server.role}"
    if not server.may_replicate:
        fix = f"GRANT rds_replication TO {role};" if server.on_rds else f"ALTER ROLE {role} REPLICATION;"
        yield Finding(name, Level.BLOCKS, "may not read the replication stream", fix, sql=True)
    if to_make and not server.may_create_in_database:
        yield Finding(
            name, Level.BLOCKS, f"may not create {' and '.join(to_make)} in database {server.database}",
            f"GRANT CREATE ON DATABASE {database} TO {role};", sql=True,
        )  # fmt: skip
    for each in own:
        if not each.owned:
            yield Finding(
                f"{each.kind.lower()} {'.'.join(each.name)}", Level.BLOCKS,
                f"belongs to {each.owner}: only an owner can change it",
                f"ALTER {each.kind} {identifier(*each.name)} OWNER TO {role};", sql=True,
            )  # fmt: skip


def judge_heap(heap: HeapFacts, server: ServerFacts) -> Iterator[Finding]:
    """A table that will be published: can it be read and published?"""
    name, role = str(heap.id), identifier(server.role)
    if heap.kind == "f":
        yield Finding(
            name, Level.BLOCKS, "is a foreign table as a partition, which can't be published: leave out its root, or "
            "detach it", f"exclude = [{toml(str(heap.root))}]",
        )  # fmt: skip
        return
    if heap.persistence == "u":
        yield Finding(
            name, Level.BLOCKS, "is unlogged: its changes are not in the WAL",
            f"ALTER TABLE {heap.sql_name} SET LOGGED;", sql=True,
        )  # fmt: skip
    for object, grant in read_grants(heap, role).items():
        what = "may not be used" if object.startswith("schema ") else "may not be read"
        yield Finding(object, Level.BLOCKS, f"{what} by role {server.role}: nothing can be copied", grant, sql=True)
    if not heap.owned:
        yield Finding(
            str(heap.root), Level.BLOCKS, f"belongs to {heap.owner}: only an owner can add it to a publication",
            owner_remedy(server.role, heap.root, heap.owner, heap.owner_superuser, server.inherits, server.version),
            sql=True,
        )  # fmt: skip
    if heap.row_security:
        yield Finding(
            name, Level.BLOCKS, "has row security that hides rows from this role, so a copy would not be whole",
            f"ALTER ROLE {role} BYPASSRLS;", sql=True,
        )  # fmt: skip


def judge_updates(table: TableId, heaps: Sequence[RefusedHeap], ours: bool) -> Iterator[Finding]:
    """Tables on which PostgreSQL refuses updates once they are published. `ours`: by a publication that we make."""
    if not heaps:
        return
    why = heaps[0].why if heaps[0].id == table else f"of its partition {heaps[0].id}, {heaps[0].why}"
    consequence = f"{why}; PostgreSQL refuses UPDATE and DELETE on it while it is published"
    if ours:
        consequence += (
            f". It is not mirrored until it has a replica identity, or, if its rows are only ever inserted: "
            f"[tables.{toml(str(table))}] append_only = true"
        )
    yield Finding(str(table), Level.BLOCKS if ours else Level.WARNS, consequence, fix_of(table, heaps), sql=True)


def judge_wanted_twice(groups: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Tables that more than one group wants; `groups` has the groups of each table."""
    for table, names in groups.items():
        if len(names) > 1:
            yield Finding(
                table, Level.BLOCKS, f"is wanted by groups {' and '.join(names)}, and a table can be in one only",
                f"exclude it in all but one of them: exclude = [{toml(table)}]",
            )  # fmt: skip


def judge_groups(configured: Collection[str], specs: Iterable[GroupSpec], ran: Iterable[str]) -> Iterator[Finding]:
    """Where the configuration and the state store differ, and what a run will do."""
    known = set(configured)
    for spec in specs:
        name = f"group {spec.name}"
        known |= {spec.name} if spec.made else set()
        if spec.dropping:
            yield Finding(name, Level.NOTES, "is to be dropped: a run does it, with its slot and publication")
        elif not spec.enabled:
            yield Finding(
                name, Level.WARNS, "is disabled: a run leaves it alone, and its slot, if it has one, holds WAL",
                f"wal2lake groups enable {spec.name}",
            )  # fmt: skip
        elif spec.made and spec.name in configured:
            yield Finding(
                name, Level.WARNS, "is in the configuration and was made by a command: a run takes the configuration's",
                "remove it from [[groups]] if the other one is meant",
            )  # fmt: skip
    for left in sorted(set(ran) - known):
        yield Finding(
            f"group {left}", Level.WARNS, "has run, and nothing wants it any more: a run leaves it alone, and its slot "
            "holds WAL", f"wal2lake groups drop {left}",
        )  # fmt: skip


def judge_removed(matched: Mapping[int, str], specs: Iterable[TableSpec]) -> Iterator[Finding]:
    """Tables that the configuration means and a command has removed."""
    for spec in specs:
        if spec.wanted is False and spec.oid in matched:
            name = matched[spec.oid]
            yield Finding(
                name, Level.NOTES, "was removed by a command: a run does not mirror it, though the configuration "
                "means it", f"wal2lake tables add {shell(name)}",
            )  # fmt: skip


def judge_failover(wanted: bool, server_version: int) -> Iterator[Finding]:
    if wanted and server_version < FAILOVER_SINCE:
        yield Finding(
            "[source] failover", Level.WARNS, "PostgreSQL before 17 has no failover slots: it has no effect",
            "leave it out; after a failover, tables have to be re-copied",
        )  # fmt: skip


def judge_types(schemas: Iterable[TableSchema]) -> Iterator[Finding]:
    """One note for each type that is kept as text though it is no text in PostgreSQL."""
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
        yield Finding(f"type {type_name}", Level.NOTES, f"is kept as PostgreSQL's text{several}: {where}", fix)


def judge_generated(columns: Mapping[str, Sequence[str]], server_version: int) -> Iterator[Finding]:
    """Generated columns that the stream does not carry, by table."""
    reason = "virtual ones are not published" if server_version >= 180000 else "PostgreSQL before 18 publishes none"
    for table, names in columns.items():
        yield Finding(table, Level.NOTES, f"generated columns are left out ({reason}): {', '.join(names)}")


def judge_columns(schema: TableSchema, ours: bool = True) -> Iterator[Finding]:
    """A list of columns beside what PostgreSQL has to send of old rows. `ours`: of a publication that we make."""
    if schema.only and schema.identity is Identity.FULL:
        yield Finding(
            str(schema.id), Level.BLOCKS if ours else Level.WARNS,
            "it has a list of columns, and its replica identity FULL allows none: PostgreSQL refuses UPDATE and DELETE "
            "on it while it is published",
            f"ALTER TABLE {_sql_name(schema)} REPLICA IDENTITY DEFAULT;", sql=True,
        )  # fmt: skip


def judge_filter(schema: TableSchema, columns: Sequence[str]) -> Iterator[Finding]:
    """A row filter beside what PostgreSQL has of old rows. `columns`: those that the filter looks at."""
    outside = [name for name in columns if name not in schema.key]
    if schema.identity is Identity.FULL or not schema.key or not outside:
        return
    name = _sql_name(schema)
    fix = f"ALTER TABLE {name} REPLICA IDENTITY FULL;"
    if schema.only:
        fix = index_fix(schema.id, [*schema.key, *outside])
    yield Finding(
        str(schema.id), Level.BLOCKS,
        f"its row filter looks at {', '.join(outside)}, which is not in its replica identity: PostgreSQL refuses "
        "UPDATE and DELETE on it while it is published",
        fix, sql=True,
    )  # fmt: skip


def judge_settings(configured: Iterable[str], wanted: Collection[str], lost: Collection[str] = ()) -> Iterator[Finding]:
    """Settings for a table that no group wants are likely a misspelt name; `lost` ones keep nothing out of the lake."""
    for name in configured:
        if name not in wanted:
            yield Finding(
                f"[tables.{toml(name)}]", Level.BLOCKS if name in lost else Level.WARNS,
                "no mirrored table has this name, so its settings are not used",
                "correct the name, or remove the section",
            )  # fmt: skip


def judge_java(java: JavaFacts) -> Iterator[Finding]:
    install = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME to Java 17 or newer"
    if java.path is None:
        yield Finding("Java", Level.BLOCKS, "is not found, and Spark needs it", install)
    elif java.major is not None and java.major < OLDEST_JAVA:
        yield Finding(
            "Java", Level.BLOCKS, f"{java.path} is Java {java.major}, and Spark needs {OLDEST_JAVA} or newer", install
        )


def judge_lake(lake: LakeFacts, source_bytes: int) -> Iterator[Finding]:
    if lake.problem is not None:
        yield Finding(
            f"lake {lake.path}", Level.BLOCKS, f"can't be written: {lake.problem}",
            "make it writable for this user, or choose another [lake] path",
        )  # fmt: skip
    elif lake.free_bytes < source_bytes:
        yield Finding(
            f"lake {lake.path}", Level.WARNS,
            f"has {_megabytes(lake.free_bytes)} free, and the tables take {_megabytes(source_bytes)} in PostgreSQL",
            "make room, or choose another [lake] path",
        )  # fmt: skip


def _megabytes(size: int) -> str:
    return f"{size / 1024**2:,.0f} MB"


def _sql_name(schema: TableSchema) -> str:
    return identifier(schema.id.schema, schema.id.name)


def script(findings: Iterable[Finding]) -> str:
    """What is to be run as SQL before a run, as one script; the rest are comments in it."""
    lines = []
    for finding in findings:
        if finding.blocks:
            # A name may hold the end of a line, which would end the comment.
            lines.append("-- " + " ".join(f"{finding.object}: {finding.consequence}".split()))
            lines.append(finding.fix if finding.sql else "-- no SQL: " + " ".join(finding.fix.split()))
    return "".join(f"{line}\n" for line in lines)
