"""Which changes of a column's type keep all its values. Pure; the facts are those of `types/`."""

from __future__ import annotations

from ..schema import Column
from ..types import TYPES, Kind, LakeType


def same_values(before: Column, after: Column) -> bool:
    """Whether each value of a column stays the same in the lake after PostgreSQL's change of its type."""
    if before.lake.is_list or after.lake.is_list:
        return (before.type_oid, before.typmod, before.lake) == (after.type_oid, after.typmod, after.lake)
    return _lake_widens(before.lake, after.lake) and _type_widens(before, after)


def _lake_widens(before: LakeType, after: LakeType) -> bool:
    return before == after or TYPES.carrier(before).widens(before, after)


def _type_widens(before: Column, after: Column) -> bool:
    same_type = before.type_oid == after.type_oid
    if same_type and before.typmod == after.typmod:
        return True
    scalar = TYPES.scalars.get(before.type_oid)
    if scalar is None:
        return False
    if same_type:
        return scalar.typmod_widens(before.typmod, after.typmod)
    if after.type_oid not in scalar.widens_to or after.typmod != -1:
        return False
    return scalar.widens_as_text or before.lake.kind is not Kind.STRING
