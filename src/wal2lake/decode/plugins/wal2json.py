"""The objects of wal2json, format version 2: one for each change.

    {"action":"B","xid":754,"timestamp":"2026-11-18 20:17:10.123456+00","lsn":"0/1A2B3C8","nextlsn":"0/1A2B3F8"}
    {"action":"U",…,"schema":"public","table":"t","columns":[{"name":"id","typeoid":23,"value":"2"}],
     "identity":[{"name":"id","typeoid":23,"value":"1"}]}
    {"action":"T",…,"schema":"public","table":"t"}

Type names are not asked for: those that need quotes make an object that is no JSON. Numbers are asked for as strings,
because NaN and Infinity are null otherwise, as NULL is; versions before 2.6 know no such option, and their null is
marked as ambiguous. A value that is unchanged TOAST is left out with its column.
"""

from __future__ import annotations

import json
from typing import Any

from ...position import Lsn
from .told import (
    Ambiguous,
    Began,
    Cell,
    CommitPoint,
    Ended,
    NotUnderstood,
    RowTold,
    TableName,
    Told,
    Truncated,
    Value,
    microseconds,
)

OPTIONS = {
    "format-version": "2",
    "include-xids": "true",
    "include-timestamp": "true",
    "include-lsn": "true",
    "include-types": "false",
    "include-type-oids": "true",
    "actions": "insert,update,delete,truncate",
}

EXACT_NUMBERS = {"numeric-data-types-as-string": "true"}
"""what versions from 2.6 on are asked for as well"""

_BYTEA = 17
_MAY_BE_NO_NUMBER = (700, 701, 1700)
"""float4, float8 and numeric"""


def parse(message: bytes) -> Told | None:
    """What a message tells; None if it is nothing of a table. Raises NotUnderstood."""
    return _parsed(message, exact=True)


def parse_inexact(message: bytes) -> Told | None:
    """The same of a stream that was not asked for exact numbers."""
    return _parsed(message, exact=False)


def _parsed(message: bytes, exact: bool) -> Told | None:
    try:
        # Numbers as they are written, to the last digit.
        told = json.loads(message, parse_float=_Number, parse_int=_Number)
        match told["action"]:
            case "I" | "U" | "D" as kind:
                return _row(kind, told, exact)
            case "B":
                return Began(int(told["xid"]), _commit(told))
            case "C":
                commit = _commit(told)
                return Ended(int(told["xid"]), commit.commit_us, commit)
            case "T":
                return Truncated((TableName(told["schema"], told["table"]),))
            case "M":
                return None
    except (ValueError, KeyError, TypeError):
        # With its cause, the message's text would be in the traceback.
        raise NotUnderstood from None
    raise NotUnderstood


def _commit(told: dict[str, Any]) -> CommitPoint:
    return CommitPoint(Lsn.parse(told["lsn"]), Lsn.parse(told["nextlsn"]), microseconds(told["timestamp"]))


def _row(kind: str, told: dict[str, Any], exact: bool) -> RowTold:
    old = _cells(told["identity"], exact) if "identity" in told else None
    new = _cells(told["columns"], exact) if kind != "D" else ()
    return RowTold(kind, TableName(told["schema"], told["table"]), new, old, complete=kind == "I")


def _cells(columns: list[dict[str, Any]], exact: bool) -> tuple[Cell, ...]:
    # Oids are written with a sign.
    return tuple(_cell(one["name"], int(one["typeoid"]) & 0xFFFFFFFF, one["value"], exact) for one in columns)


def _cell(name: str, type_oid: int, value: str | bool | None, exact: bool) -> Cell:
    return Cell(name, type_oid, _value(type_oid, value, exact))


def _value(type_oid: int, value: str | bool | None, exact: bool) -> Value:
    if value is None:
        return Ambiguous.NULL if not exact and type_oid in _MAY_BE_NO_NUMBER else None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return ("\\x" + value if type_oid == _BYTEA else value).encode()


class _Number(str):
    """Of a JSON object."""

    __slots__ = ()
