"""Triggers of a lane: which tables have them, whether they are as they should be, and how they come and go.

A table and each of its partitions have triggers of their own, because a statement fires those of the table that it
names and no others. They all fill the buffer of the mirrored table, in its columns.
"""

# ruff: noqa: S608 - every name in these texts is ours or quoted
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from ...errors import SourceBusy, SourceRefused, Wal2LakeError
from ...position import Lsn
from ...quoting import identifier, toml
from ...schema import TableSchema
from ..sessions.connect import Connection, explained, query
from ..sessions.locking import retried, wait_briefly
from . import rights
from .definition import OPERATIONS, SCHEMA, Attribute, Buffer, BufferColumn, Installation, filled_by
from .rights import ENABLE, Lacking


class Condition(StrEnum):
    """How the triggers of a table are."""

    INSTALLED = "installed"
    OUTDATED = "outdated"
    INCOMPLETE = "incomplete"
    """a partition came since"""
    MISSING = "missing"
    DISABLED = "disabled"


FOLLOWED = (Condition.OUTDATED, Condition.INCOMPLETE)
"""what is put right without a copy, unless rows were missed meanwhile"""


@dataclass(frozen=True)
class Part:
    """A table that needs triggers: a mirrored one, or a partition of it."""

    oid: int
    name: str
    """qualified and quoted"""
    root: int
    """the mirrored table"""
    foreign: bool
    inherited: bool
    """whether tables inherit from it: a statement on it changes their rows, too"""
    inherits: bool
    """whether the mirrored table is below another one: a statement on that one fires no triggers of it"""
    subscribed: bool
    """whether a subscription writes it: an apply worker fires no statement-level triggers"""


def parts_of(conn: Connection, oids: Collection[int]) -> list[Part]:
    with explained("reading", "the tables that need triggers"):
        rows = conn.execute(query("trigger_tables"), {"oids": list(oids)}).fetchall()
    return [
        Part(oid, identifier(schema, name), root, kind == "f", inherited, inherits, subscribed)
        for oid, schema, name, kind, root, inherited, inherits, subscribed in rows
    ]


def buffers(conn: Connection, lane: str | None) -> dict[int, list[Buffer]]:
    """The buffers of each table of a lane, or of all, older ones first."""
    with explained("reading", "the buffers"):
        if not exists(conn):
            return {}
        rows = conn.execute(query("trigger_buffers"), {"lane": lane}).fetchall()
    found: defaultdict[int, list[Buffer]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(_buffer(*row))
    return dict(found)


def unread_bytes(conn: Connection, lane: str, position: Lsn) -> int:
    """How much WAL has been written since a position, if a buffer has rows; 0 if nothing waits."""
    present = [buffer.name for some in buffers(conn, lane).values() for buffer in some]
    if not present:
        return 0
    filled = " OR ".join(f"EXISTS (SELECT FROM {name})" for name in present)
    with explained("reading", "the buffers"):
        row = conn.execute(
            f"SELECT CASE WHEN {filled} THEN pg_current_wal_insert_lsn() - %s::pg_lsn ELSE 0 END::int8".encode(),
            [str(position)],
        ).fetchone()
    return max(0, int(row[0])) if row is not None else 0


def all_buffers(conn: Connection, oid: int) -> list[Buffer]:
    """The buffers of a table, of whichever lane they are, older ones first."""
    if not exists(conn):
        return []
    with explained("reading", "the buffers"):
        rows = conn.execute(
            "SELECT relid::int8, generation, columns, layout, retired::text FROM wal2lake_changes.buffers"
            " WHERE relid = %s ORDER BY generation", [oid],
        ).fetchall()  # fmt: skip
    return [_buffer(*row) for row in rows]


def _buffer(relid: int, generation: int, columns: Sequence[Any], layout: str, retired: str | None) -> Buffer:
    return Buffer(relid, generation, tuple(BufferColumn(*one) for one in columns), layout, retired)


def exists(conn: Connection) -> bool:
    with explained("reading", f"schema {SCHEMA}"):
        # Not by to_regclass: it fails where the role may not use the schema, which is then another installation's.
        row = conn.execute(
            "SELECT EXISTS (SELECT FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid"
            " WHERE n.nspname = 'wal2lake_changes' AND c.relname = 'lanes' AND has_schema_privilege(n.oid, 'USAGE'))"
        ).fetchone()
    return bool(row and row[0])


def may_install(conn: Connection, oids: Collection[int]) -> bool:
    """Whether the role can have triggers that always fire on these tables and their partitions."""
    return not lacking_rights(conn, oids)


def lacking_rights(conn: Connection, oids: Collection[int]) -> list[Lacking]:
    """What the role lacks for that; each statement once."""
    role = identifier(conn.info.user)
    parts = [part.oid for part in parts_of(conn, oids) if not part.foreign]
    found = [*rights.lacking_place(conn, role), *rights.lacking(conn, parts, role)]
    return list({one.fix: one for one in found}.values())


def prepare(conn: Connection) -> None:
    """Make what the buffers need in the schema, and the schema, unless they are there."""
    if exists(conn):
        return
    with explained("creating", f"schema {SCHEMA}"), conn.transaction():
        # Two groups may begin at once.
        conn.execute("SELECT pg_advisory_xact_lock(hashtext('wal2lake_changes'))")
        for one in rights.lacking_place(conn, identifier(conn.info.user)):
            raise _refused(SCHEMA, [one])
        if rights.place(conn).owner is None:
            conn.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        conn.execute(query("trigger_schema"))


def conditions(conn: Connection, lane: str | None, oids: Collection[int]) -> dict[int, Condition]:
    """How the triggers of mirrored tables are; the worst of a table and its partitions counts."""
    found = {}
    planned = _planned(conn, parts_of(conn, oids), buffers(conn, lane), {})
    installed = _installed(conn, [one.relid for some in planned.values() for one in some])
    present_functions = functions(conn)
    worst = [
        Condition.INSTALLED, Condition.OUTDATED, Condition.INCOMPLETE, Condition.DISABLED, Condition.MISSING,
    ]  # fmt: skip
    for oid in oids:
        states = [_condition(one, installed, one.relid not in present_functions) for one in planned.get(oid, ())]
        found[oid] = max(states, key=worst.index) if states else Condition.MISSING
    return found


def _condition(
    wanted: Installation, installed: Mapping[int, tuple[str, Collection[str], bool]], new: bool
) -> Condition:
    """`new`: it never had triggers."""
    source, triggers, always = installed.get(wanted.relid, ("", (), True))
    if new and wanted.part:
        return Condition.INCOMPLETE
    if not all(any(name.startswith(f"wal2lake_{one.lower()}_") for name in triggers) for one in OPERATIONS):
        return Condition.MISSING
    if not always:
        return Condition.DISABLED
    same = source == wanted.source and set(triggers) == set(wanted.triggers)
    return Condition.INSTALLED if same else Condition.OUTDATED


def install(
    conn: Connection, lane: str, schemas: Sequence[TableSchema], patience: float, stopped: Callable[[], bool]
) -> dict[int, Wal2LakeError]:
    """Have tables captured from here on; the reasons of those that can't be. Raises SourceBusy if one is locked."""
    prepare(conn)
    refused: dict[int, Wal2LakeError] = {}
    by_oid = {schema.oid: schema for schema in schemas}
    parts = parts_of(conn, by_oid)
    for oid, schema in by_oid.items():
        if (error := obstacle([part for part in parts if part.root == oid], schema)) is not None:
            refused[oid] = error
    usable = {oid: schema for oid, schema in by_oid.items() if oid not in refused}
    parts = [part for part in parts if part.root in usable and not part.foreign]
    for oid, schema in usable.items():
        own = [part for part in parts if part.root == oid]
        try:
            retried(partial(install_one, conn, lane, schema, own), patience, stopped)
        except SourceRefused as error:
            refused[oid] = error
    return refused


def obstacles(conn: Connection, oids: Collection[int]) -> dict[int, str]:
    """Why tables can't be captured by triggers, of those that can't."""
    found: dict[int, str] = {}
    for part in parts_of(conn, oids):
        if (cause := _cause(part)) is not None:
            found.setdefault(part.root, cause)
    return found


def _cause(part: Part) -> str | None:
    causes = {
        "tables inherit from it, and a statement on it changes their rows, too": part.inherited,
        "it inherits from another table, and a statement on that one fires no triggers of it": part.inherits,
        "a subscription writes it, which fires no statement-level triggers": part.subscribed,
        "it has a foreign partition": part.foreign,
    }
    return next((cause for cause, holds in causes.items() if holds), None)


def obstacle(parts: Sequence[Part], schema: TableSchema) -> Wal2LakeError | None:
    """Why a table can't be captured by triggers; `parts`: itself and its partitions."""
    cause = "a setting keeps rows out of the lake, which triggers do not" if schema.where is not None else None
    cause = cause or next(filter(None, map(_cause, parts)), None)
    if cause is None:
        return None
    return SourceRefused(
        operation="capturing", object=str(schema.id), cause=cause,
        remedy=f"leave the table out: exclude = [{toml(str(schema.id))}] in [[groups]]; or set capture = \"wal\" there",
    )  # fmt: skip


def install_one(conn: Connection, lane: str, schema: TableSchema, parts: Sequence[Part]) -> None:
    """One table with its partitions, in one transaction: it is captured from its end on, wholly."""
    names = _type_names(conn, schema)
    columns = tuple(BufferColumn(c.name, c.type_oid, c.typmod, *names[c.type_oid]) for c in schema.columns)
    with explained("installing triggers on", str(schema.id)), conn.transaction():
        wait_briefly(conn)
        # The capture process and the run may both find that a table was altered.
        conn.execute("SELECT pg_advisory_xact_lock(hashtext('wal2lake_changes'))")
        present = buffers(conn, lane)
        latest = present[schema.oid][-1] if present.get(schema.oid) else None
        layout = _layouts(conn, [schema.oid]).get(schema.oid)
        if layout is None:
            raise SourceBusy(operation="installing triggers on", object=str(schema.id), cause="it is gone")
        made: Buffer | None = None
        if latest is None or latest.retired or latest.columns != columns or latest.layout != layout[0]:
            made = Buffer(schema.oid, latest.generation + 1 if latest else 0, columns, layout[0])
            _create(conn, lane, made, latest)
        planned = _planned(conn, parts, present, {schema.oid: made} if made else {})[schema.oid]
        installed = _installed(conn, [one.relid for one in planned])
        owned = rights.owned(conn, [one.relid for one in planned])
        if found := rights.lacking(conn, [one.relid for one in planned], identifier(conn.info.user)):
            raise _refused(str(schema.id), found)
        # Another buffer may be that of a partition that was a table of its own.
        before = {relid for relid, (source, *_) in installed.items() if filled_by(source) == schema.oid}
        for one in planned:
            source, triggers, always = installed.get(one.relid, ("", (), True))
            if set(triggers) - set(one.triggers):
                # Only an owner of the table can drop a trigger; the function is ours, and its triggers go with it.
                conn.execute(f"DROP FUNCTION {one.function}() CASCADE".encode())
                source, triggers = "", ()
            if source != one.source:
                conn.execute(one.create_function.encode())
                conn.execute(f"REVOKE ALL ON FUNCTION {one.function}() FROM PUBLIC".encode())
            lacking = [statement for name, statement in one.triggers.items() if name not in triggers]
            for statement in lacking:
                conn.execute(statement.encode())
            if lacking or not always:
                _enable(conn, one, one.relid in owned)
            if before and one.relid not in before and one.part and _was_written(conn, one):
                # Rows came into a partition, or went, before it had triggers.
                conn.execute(f"INSERT INTO {one.buffer.name} (op) VALUES ('X')".encode())


def _enable(conn: Connection, one: Installation, owned: bool) -> None:
    if owned:
        for name in one.triggers:
            conn.execute(f"ALTER TABLE {one.table} ENABLE ALWAYS TRIGGER {name}".encode())
        return
    conn.execute(f"SELECT {SCHEMA}.enable_always(%s::oid)".encode(), [one.relid])
    if not _installed(conn, [one.relid])[one.relid][2]:
        role = identifier(conn.info.user)
        raise SourceRefused(
            operation="installing triggers on", object=one.table, cause=f"function {ENABLE} does not enable them",
            remedy=rights.paste_enabling(role),
        )  # fmt: skip


def _refused(object: str, found: Sequence[Lacking]) -> SourceRefused:
    """The cause is that of the first; the remedy has all statements."""
    return SourceRefused(
        operation="installing triggers on", object=object, cause=f"{found[0].object} {found[0].consequence}",
        remedy=" ".join(dict.fromkeys(one.fix for one in found)),
    )  # fmt: skip


def _was_written(conn: Connection, one: Installation) -> bool:
    """Whether a partition may have had rows that no trigger of its own has seen."""
    row = conn.execute(
        "SELECT c.relkind = 'r' AND (pg_relation_size(c.oid) > 0 OR c.relfilenode <> c.oid)"
        " FROM pg_class c WHERE c.oid = %s", [one.relid],
    ).fetchone()  # fmt: skip
    return bool(row and row[0])


def _create(conn: Connection, lane: str, made: Buffer, latest: Buffer | None) -> None:
    conn.execute(made.create().encode())
    conn.execute(f"REVOKE ALL ON {made.name} FROM PUBLIC".encode())
    if latest is not None:
        conn.execute(
            "UPDATE wal2lake_changes.buffers SET retired = pg_current_xact_id() WHERE relid = %s AND retired IS NULL",
            [made.relid],
        )
    columns = json.dumps([column.to_json() for column in made.columns])
    conn.execute(
        "INSERT INTO wal2lake_changes.buffers (relid, generation, lane, columns, layout) VALUES (%s, %s, %s, %s, %s)",
        [made.relid, made.generation, lane, columns, made.layout],
    )


def _type_names(conn: Connection, schema: TableSchema) -> dict[int, tuple[str, str]]:
    oids = {column.type_oid for column in schema.columns}
    with explained("reading", "the types of columns"):
        rows = conn.execute(query("trigger_types"), {"oids": list(oids)}).fetchall()
    if len(rows) < len(oids):
        raise SourceBusy(operation="installing triggers on", object=str(schema.id), cause="a type was dropped")
    return {oid: (name, output) for oid, name, output in rows}


def _layouts(conn: Connection, oids: Collection[int]) -> dict[int, tuple[str, list[Attribute]]]:
    with explained("reading", "the columns of tables"):
        layouts: dict[int, str] = dict(conn.execute(query("trigger_layout"), {"oids": list(oids)}).fetchall())
        rows = conn.execute(
            "SELECT attrelid::int8, attnum::int, attname::text, atttypid::int8, atttypmod, attisdropped"
            " FROM pg_attribute WHERE attrelid = ANY (%s::oid[]) AND attnum > 0 ORDER BY attrelid, attnum",
            [list(oids)],
        ).fetchall()
    attributes: defaultdict[int, list[Attribute]] = defaultdict(list)
    for relid, *attribute in rows:
        attributes[relid].append(Attribute(*attribute))
    return {oid: (layout, attributes[oid]) for oid, layout in layouts.items()}


def _planned(
    conn: Connection, parts: Sequence[Part], present: Mapping[int, Sequence[Buffer]], made: Mapping[int, Buffer]
) -> dict[int, list[Installation]]:
    """What each mirrored table and its partitions are to have."""
    layouts = _layouts(conn, [part.oid for part in parts])
    found: defaultdict[int, list[Installation]] = defaultdict(list)
    for part in parts:
        buffer = made.get(part.root) or (present[part.root][-1] if present.get(part.root) else None)
        if buffer is None or part.oid not in layouts:
            continue
        layout, attributes = layouts[part.oid]
        known = {one.name for one in attributes if not one.dropped}
        if part.oid == part.root and layout != buffer.layout and not made:
            # It was altered since: what is installed has to be made for its columns first.
            buffer = replace(buffer, layout=layout, columns=())
        if {column.name for column in buffer.columns} <= known:
            found[part.root].append(Installation(part.oid, part.name, attributes, buffer, part.oid != part.root))
    return found


def _installed(conn: Connection, oids: Collection[int]) -> dict[int, tuple[str, Collection[str], bool]]:
    """Of each table the body of its capture function, its triggers, and whether all are always enabled."""
    with explained("reading", "the triggers of tables"):
        rows = conn.execute(query("trigger_installed"), {"oids": list(oids)}).fetchall()
    return {oid: (source, triggers, always) for oid, source, triggers, always in rows}


def functions(conn: Connection) -> dict[int, int | None]:
    """The relations that have a function for their triggers, and the mirrored table whose buffer each fills."""
    with explained("reading", "the functions of triggers"):
        rows = conn.execute(
            "SELECT substr(p.proname, 9)::int8, p.prosrc FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
            " WHERE n.nspname = 'wal2lake_changes' AND p.proname ~ '^capture_[0-9]+$'"
        ).fetchall()
    return {oid: filled_by(source) for oid, source in rows}
