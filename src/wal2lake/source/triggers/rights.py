"""What a role needs to capture by triggers, and the statements by which a DBA gives it.

owner of a table             everything
TRIGGER on it                triggers, which fire for ordinary sessions only
and the DBA's function       triggers that always fire
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...quoting import identifier
from ...schema import TableId
from ..sessions.connect import Connection, explained, query
from .definition import SCHEMA

ENABLE = f"{SCHEMA}.enable_always(oid)"
"""the function of a DBA that has triggers fire always, for a role that does not own the tables"""


@dataclass(frozen=True)
class Lacking:
    """A privilege that the role does not have."""

    object: str
    consequence: str
    fix: str
    """SQL, or what else to do"""
    sql: bool = True
    table: int | None = None
    """the table or partition that it is needed for; None: for all"""


@dataclass(frozen=True)
class Place:
    """The schema of the buffers."""

    owner: str | None
    """None: it is not there"""
    owned: bool
    others: bool
    """whether the buffers in it are another role's"""
    enabling: bool
    """whether a DBA's function is in it"""
    may_create: bool

    @property
    def kept(self) -> bool:
        """Whether it outlives the last lane, because a DBA made it."""
        return self.enabling or not self.may_create


def place(conn: Connection) -> Place:
    with explained("reading", f"schema {SCHEMA}"):
        row = conn.execute(query("trigger_place")).fetchone()
    assert row is not None
    return Place(*row)


def create_place(role: str) -> str:
    """`role` is quoted, here and below."""
    return f"CREATE SCHEMA {SCHEMA} AUTHORIZATION {role};"


def create_enabling(role: str) -> tuple[str, ...]:
    """The statements for the DBA's function. An older one, of whomever, is not replaced but dropped."""
    create = query("trigger_enable").decode().strip() + ";"
    return (
        f"DROP FUNCTION IF EXISTS {ENABLE};",
        create,
        f"REVOKE ALL ON FUNCTION {ENABLE} FROM PUBLIC;",
        may_enable(role),
    )


def paste_enabling(role: str) -> str:
    """The same, as one line."""
    lines = "\n".join(create_enabling(role)).splitlines()
    return " ".join(" ".join(line for line in lines if not line.strip().startswith("--")).split())


def may_enable(role: str) -> str:
    return f"GRANT EXECUTE ON FUNCTION {ENABLE} TO {role};"


def lacking_place(conn: Connection, role: str) -> list[Lacking]:
    """Why the role can't keep buffers."""
    found, name = place(conn), f"schema {SCHEMA}"
    if found.others:
        return [
            Lacking(
                name, f"has the buffers of role {found.owner}: one role of a database captures by triggers",
                f'name role {found.owner} in [source] dsn, or set capture = "wal" in the group', sql=False,
            )
        ]  # fmt: skip
    if found.owner is None and not found.may_create:
        return [Lacking(name, "can't be created by the role, and it needs a place for buffers", create_place(role))]
    if found.owner is not None and not found.owned:
        fix = f"ALTER SCHEMA {SCHEMA} OWNER TO {role};"
        return [Lacking(name, f"belongs to {found.owner}: only an owner can create buffers in it", fix)]
    return []


def owned(conn: Connection, oids: Collection[int]) -> frozenset[int]:
    """The tables that belong to the role."""
    return frozenset(oid for oid, *_, is_owned, _, _, _, _ in _rights(conn, oids) if is_owned)


def lacking(conn: Connection, oids: Collection[int], role: str) -> list[Lacking]:
    """Why triggers that always fire can't be installed on tables and partitions."""
    found: list[Lacking] = []
    for oid, schema, name, owner, is_owned, usable, may_trigger, can_enable, may_call in _rights(conn, oids):
        id = TableId(schema, name)
        if not usable:
            within = identifier(schema)
            what = f"GRANT USAGE ON SCHEMA {within} TO {role};"
            found.append(Lacking(f"schema {within}", "may not be used by the role", what, table=oid))
        if is_owned:
            continue
        if not may_trigger:
            what = f"GRANT TRIGGER ON {identifier(schema, name)} TO {role};"
            found.append(
                Lacking(str(id), f"belongs to {owner}, and the role may not create triggers on it", what, table=oid)
            )
        if not can_enable:
            cause = f"does not exist, or its owner may not alter tables of {owner}: triggers would not always fire"
            found.append(Lacking(f"function {ENABLE}", cause, paste_enabling(role), table=oid))
        elif not may_call:
            found.append(Lacking(f"function {ENABLE}", "may not be called by the role", may_enable(role), table=oid))
    return found


def _rights(conn: Connection, oids: Collection[int]) -> list[tuple[int, str, str, str, bool, bool, bool, bool, bool]]:
    with explained("reading", "the privileges of the role"):
        return conn.execute(query("trigger_rights"), {"oids": list(oids)}).fetchall()
