"""Which changes of a column's type keep all its values as they are. Pure."""

from __future__ import annotations

from ..pgtypes import NUMERIC, Kind, LakeType
from ..schema import Column

_INTEGERS = (21, 23, 20)


_FLOATS = (700, 701)


_TEXT, _VARCHAR = 25, 1043


_SECONDS = (1083, 1114, 1184, 1266)
"""types whose typmod is a number of digits after the second"""


def same_values(before: Column, after: Column) -> bool:
    """Whether each value of a column is the same, to the lake, after its type was changed as PostgreSQL does it."""
    if before.lake.is_list or after.lake.is_list:
        return (before.type_oid, before.typmod, before.lake) == (after.type_oid, after.typmod, after.lake)
    return _lake_widens(before.lake, after.lake) and _type_widens(before, after)


def _lake_widens(before: LakeType, after: LakeType) -> bool:
    if before == after:
        return True
    if before.kind is Kind.DECIMAL:
        return after.kind is Kind.DECIMAL and after.scale == before.scale and after.precision > before.precision
    return (before.kind, after.kind) in ((Kind.INT, Kind.LONG), (Kind.FLOAT, Kind.DOUBLE))


def _type_widens(before: Column, after: Column) -> bool:
    if before.type_oid == after.type_oid:
        return before.typmod == after.typmod or _typmod_widens(before.type_oid, before.typmod, after.typmod)
    if before.type_oid in _INTEGERS and after.type_oid in _INTEGERS:
        return _INTEGERS.index(after.type_oid) > _INTEGERS.index(before.type_oid)
    if (before.type_oid, after.type_oid) == _FLOATS:
        # As text, a float has fewer digits than the double that it becomes.
        return before.lake.kind is Kind.FLOAT
    if after.type_oid == _TEXT or (after.type_oid == _VARCHAR and after.typmod == -1):
        return before.type_oid in (_TEXT, _VARCHAR)
    return False


def _typmod_widens(type_oid: int, before: int, after: int) -> bool:
    if type_oid == NUMERIC:
        # Without limits a numeric has the digits that it was given.
        return after == -1 or (before != -1 and _scale(after) == _scale(before) and after > before)
    if type_oid == _VARCHAR or type_oid in _SECONDS:
        return after == -1 or (before != -1 and after > before)
    return False


def _scale(typmod: int) -> int:
    return (typmod - 4) & 0x7FF
