"""What a told change means: which relation, which columns, which old row. Certain, or refused.

A plugin tells the name that a table had, not its number, and neither types in full nor which columns identify a row.
The catalog has these, as they are at a later moment. So each fact is used only if it is known to have held when the
change was written (`chronicle.py`); a change with a fact that is not certain is refused, which costs its table a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ...schema import ReplicaIdentity
from .. import protocol
from ..model import Relation, RelationColumn
from ..protocol import Field, Untold
from .facts import ColumnFact, RelationFacts
from .told import Ambiguous, Cell, RowTold

Before = Callable[[int], bool]
"""Whether a transaction that altered the table ended before the change was written."""

ALTERED = "it was altered about when a row of it was changed, and the output plugin does not tell its columns then"
IDENTITY_ALTERED = "its replica identity may have changed about when a row of it was changed"
NAME_UNSURE = "a table was renamed, moved or made about when rows were changed, and the output plugin tells names only"
UNTRACEABLE = "a change does not tell which row is meant"


class Refused(Exception):
    """A change that is not certain, with the error that its table gets; no value is in it."""

    def __init__(self, error: str, **fields: str) -> None:
        self.error, self.fields = error, fields


def copy_needed(cause: str) -> Refused:
    """Once the table is copied, its next changes are certain."""
    return Refused("CopyNeeded", cause=cause)


@dataclass(frozen=True)
class Description:
    """A relation for pgoutput's Relation message."""

    relation: Relation

    @classmethod
    def of(cls, facts: RelationFacts, columns: Iterable[ColumnFact]) -> Description:
        full = facts.identity is ReplicaIdentity.FULL
        sent = tuple(
            RelationColumn(each.name, each.type_oid, each.typmod, full or each.number in facts.key) for each in columns
        )
        return cls(Relation(facts.oid, *facts.table, facts.identity, sent))


def present(facts: RelationFacts, server_version: int) -> Relation:
    """A relation as it is described now."""
    return Description.of(facts, (column for column in facts.live if column.sent(server_version))).relation


def described(
    row: RowTold, facts: RelationFacts, before: Before, server_version: int, last: Relation | None
) -> Relation:
    """The relation as it was when a row was changed. `last`: its description that the stream had before.

    Raises Refused.
    """
    _require_key(row, facts, before)
    if all(before(column.written) for column in facts.columns):
        _require_agreement(row, facts.live, whole=row.complete)
        return present(facts, server_version)
    if row.complete:
        certain = {column.name: column for column in facts.live if before(column.written)}
        columns = [certain.get(cell.column) for cell in row.new]
        known = [column for column in columns if column is not None]
        if len(known) != len(columns) or any(
            not column.is_of(cell.type) for column, cell in zip(known, row.new, strict=True)
        ):
            raise copy_needed(ALTERED)
        return Description.of(facts, (column for column in known if column.sent(server_version))).relation
    by_key = row.kind == "D" and facts.identity is not ReplicaIdentity.FULL
    if by_key and last is not None and _keys(last) == _keys(present(facts, server_version)):
        # It names its row by the key, and has nothing else: the columns beside it do not matter.
        return last
    raise copy_needed(ALTERED)


def _keys(relation: Relation) -> list[tuple[str, int]]:
    return sorted((column.name, column.type_oid) for column in relation.columns if column.key)


def _require_key(row: RowTold, facts: RelationFacts, before: Before) -> None:
    """Require that rows were identified by the key that identifies them now."""
    if facts.identity is ReplicaIdentity.FULL:
        if row.kind != "I" and not before(facts.written):
            raise copy_needed(IDENTITY_ALTERED)
        return
    keys = [column for column in facts.columns if column.number in facts.key]
    if keys and not (before(facts.key_written) and all(before(column.written) for column in keys)):
        raise copy_needed(IDENTITY_ALTERED)


def _require_agreement(row: RowTold, live: Sequence[ColumnFact], whole: bool) -> None:
    """That a row has the columns that the table is known to have had. Anything else is an error of ours."""
    known = {column.name: column for column in live}
    for cell in (*row.new, *(row.old or ())):
        column = known.get(cell.column)
        if column is None or not column.is_of(cell.type):
            raise copy_needed(ALTERED)
    if whole and len(row.new) != len(live):
        raise copy_needed(ALTERED)


def encoded(row: RowTold, facts: RelationFacts, relation: Relation, before: Before) -> bytes:
    """The change as pgoutput has it. Raises Refused."""
    for cell in (*row.new, *(row.old or ())):
        if isinstance(cell.value, Ambiguous):
            raise Refused("PluginUnfit", column=cell.column, cause=cell.value.value)
    names = [column.name for column in relation.columns]
    new = [_field(cell) for cell in _in_order(row.new, names)]
    if row.kind == "I":
        return protocol.insert(relation.oid, new)
    old, kind = _old(row, facts, relation, before)
    if row.kind == "U":
        return protocol.update(relation.oid, new, old, kind)
    if old is None:
        raise copy_needed(UNTRACEABLE)
    return protocol.delete(relation.oid, old, kind)


def _in_order(cells: Sequence[Cell], names: Sequence[str]) -> list[Cell | None]:
    by_name = {cell.column: cell for cell in cells}
    return [by_name.get(name) for name in names]


def _field(cell: Cell | None) -> Field:
    """A value of a new row. A column that is not there was left out as unchanged TOAST."""
    return cell.value if cell is not None and not isinstance(cell.value, Enum) else Untold.UNCHANGED


def _old(row: RowTold, facts: RelationFacts, relation: Relation, before: Before) -> tuple[list[Field] | None, bytes]:
    """The old row as pgoutput has it, and by what it is named; None if the key is that of the new row."""
    names = [column.name for column in relation.columns]
    cells = _in_order(row.old or (), names)
    values = [None if cell is None or isinstance(cell.value, Enum) else cell.value for cell in cells]
    if facts.identity is ReplicaIdentity.FULL:
        if row.old is None:
            raise copy_needed(UNTRACEABLE)
        return list(values), b"O"
    keys = [place for place, column in enumerate(relation.columns) if column.key]
    if not keys:
        raise copy_needed(UNTRACEABLE)
    if row.old is None:
        if row.kind == "D":
            raise copy_needed(UNTRACEABLE)
        # Without an old key the key is unchanged, if it was the replica identity; else it is unknown.
        if not before(facts.written):
            raise copy_needed(IDENTITY_ALTERED)
        return None, b"K"
    if any(values[place] is None for place in keys):
        raise copy_needed(UNTRACEABLE)
    if row.kind == "U":
        told = {cell.column for cell in row.old}
        if not before(facts.written) and (told != {names[place] for place in keys} or len(keys) == len(facts.live)):
            # What stands there may be the new row.
            raise copy_needed(IDENTITY_ALTERED)
        if row.new and all(_same(row.new, names[place], values[place]) for place in keys):
            return None, b"K"
    return [value if place in keys else None for place, value in enumerate(values)], b"K"


def _same(new: Sequence[Cell], name: str, value: Field) -> bool:
    """Whether the new row has this value. One that is left out as unchanged TOAST is in the old row alone."""
    return any(cell.value == value for cell in new if cell.column == name)
