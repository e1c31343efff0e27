"""How a lake table follows a change of its source table's columns: pure judgements on two schemas.

    lake table's schema ── follow ──► its next schema ── changes ──► columns to add, drop, rename, widen
    and a later one of the source  └► Incompatible: needs a re-copy
                                   └► Unclear: the catalog does not show what happened to a column

Columns are identified by PostgreSQL's attribute number, which a rename keeps and which is never reused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ..schema import Column, HeapFile, TableSchema
from ..types import TYPES, LakeType, Masking
from .widening import same_values


class Incompatible(Exception):
    """why a lake table needs a re-copy"""


class Unclear(Exception):
    """a question that only the person who made the change can answer; a re-copy is right in each case"""


class MasksLost(Unclear):
    """whether masks were dropped on purpose with a rename: a re-copy must not guess that"""


@dataclass(frozen=True)
class ColumnChanges:
    """Changes to make to a lake table's columns; (before, after) for a column that stays."""

    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    renamed: tuple[tuple[Column, Column], ...] = ()
    widened: tuple[tuple[Column, Column], ...] = ()

    @property
    def of_rows(self) -> bool:
        """Whether existing rows get new values."""
        return any(column.missing is not None for column in self.added)


def follow(lake: TableSchema, source: TableSchema, keep_dropped: bool = False) -> TableSchema:
    """The schema of a lake table after the next change of its source. Raises Incompatible or Unclear.

    The lake table keeps its own name.
    """
    _require_same_selection(lake, source)
    _require_logged(lake, source)
    pairs, added, dropped = _paired(lake.columns, source.columns, in_order=not source.partitioned)
    if again := {column.name for column in added} & {column.name for column in dropped}:
        # Messages carry no attribute numbers, so rows written before and after such a change look alike.
        raise Incompatible(f"column {min(again)} was dropped and added again")
    columns = [_carried(before, after) for before, after in pairs]
    # Rows that were rewritten may have a value in each new column that has no constant default.
    unknown = _rewritten(lake.heaps, source.heaps)
    columns += [replace(c, missing_known=False) if unknown and c.missing is None else c for c in added]
    kept_facts = {column.attnum or column.name: column for column, _ in pairs}
    columns = [_relying(column, kept_facts.get(column.attnum or column.name)) for column in columns]
    columns.sort(key=lambda column: column.attnum or sys.maxsize)
    taken = {column.name for column in columns}
    old = [column for column in lake.columns if column.kept and column not in dropped]
    for column in [*old, *(dropped if keep_dropped else ())]:
        name = column.name
        while name in taken:
            name += f"_dropped_{column.attnum}"
        taken.add(name)
        columns.append(replace(column, name=name, nullable=True, kept=True))
    # Membership of partitions is judged from the catalog alone: see `membership`.
    heaps = lake.heaps if source.heaps_later or lake.partitioned else _files(lake.heaps, source.heaps)
    following = TableSchema(
        lake.oid, lake.id, tuple(columns), source.key, source.identity, source.partitioned, heaps,
        version=lake.version, archived=lake.archived, where=source.where, only=source.only, entry=source.entry,
        settings_from=source.settings_from, key_index=source.key_index, catalog_key=source.catalog_key,
        by_name=source.by_name,
    )  # fmt: skip
    _require_same_key(lake, following)
    return following


def _relying(column: Column, before: Column | None) -> Column:
    """The column with the facts that its values in the lake depend on; those of a new column are not compared yet."""
    if before is None:
        return replace(column, relies=None, unaltered=False)
    return replace(column, relies=before.relies, unaltered=before.unaltered)


def texts_differ(lake: TableSchema, source: TableSchema) -> str | None:
    """Why values in the lake may have another text in PostgreSQL although no row changed; None if none has."""
    for before, after in _by_number(lake, source):
        if before.relies is None:
            # The rows are older than the first look at their type, so the time of the ALTER TYPE is unknown.
            if after.relies and not after.unaltered:
                return f"the type of column {after.name}, {after.type_name}, was altered at an unknown time"
        elif not set(before.relies) <= set(after.relies or ()):
            return f"a label or an attribute of {after.type_name}, the type of column {after.name}, was altered"
    return None


def facts_differ(lake: TableSchema, source: TableSchema) -> bool:
    """Whether the catalog has facts about the text of values that the lake table lacks."""
    unknown = any(before.relies is None and after.relies for before, after in _by_number(lake, source))
    return unknown or texts_differ(lake, source) is not None


def with_facts(lake: TableSchema, source: TableSchema) -> TableSchema:
    """The same schema, with the facts of the source where it lacks them."""
    found = {after.attnum or after.name: after for after in source.columns}
    columns = []
    for column in lake.columns:
        told = found.get(column.attnum or column.name)
        if column.relies is None and told is not None and not column.kept:
            column = replace(column, relies=told.relies, unaltered=told.unaltered)  # noqa: PLW2901
        columns.append(column)
    return replace(lake, columns=tuple(columns))


def _by_number(lake: TableSchema, source: TableSchema) -> list[tuple[Column, Column]]:
    found = {column.attnum or column.name: column for column in lake.source_columns}
    return [(found[key], after) for after in source.columns if (key := after.attnum or after.name) in found]


def _require_same_selection(lake: TableSchema, source: TableSchema) -> None:
    """Rows and columns that were left out before are in no change, so only a copy has them."""
    if lake.where != source.where:
        raise Incompatible("its row filter changed")
    if lake.only != source.only:
        raise Incompatible("its column list changed")
    if lake.entry != source.entry:
        raise Incompatible("it is published by another publication, or was unpublished for a while")
    if lake.id != source.id and lake.masked and _masks(lake) != _masks(source):
        # The settings that hid values may have been lost with the old name. Only the operator knows.
        raise MasksLost(f"{source.id} was {lake.id} and lacks the masks that it had: is that intended?")


def _require_logged(lake: TableSchema, source: TableSchema) -> None:
    """A table with another relfilenode may have been unlogged for a while, unless PostgreSQL refuses that.

    The catalog does not tell this from other causes. Partitions are judged by `moved`.
    """
    if lake.partitioned or source.partitioned or (lake.by_name and source.by_name):
        return
    if _rewritten(lake.heaps, source.heaps):
        raise Incompatible("its rows were rewritten, and it may have been unlogged meanwhile")


def _masks(schema: TableSchema) -> dict[int | str, Masking]:
    return {column.attnum or column.name: column.mask for column in schema.source_columns if column.mask}


def numbered(written: TableSchema, lake: TableSchema) -> TableSchema:
    """A schema of the source with the attribute numbers of the lake's columns of the same names, where it lacks them.

    0 remains for a column that the lake does not have any more.
    """
    known = {column.name: column.attnum for column in lake.source_columns}
    columns = tuple(
        column if column.attnum else replace(column, attnum=known.get(column.name, 0)) for column in written.columns
    )
    return replace(written, columns=columns)


class Unnumbered:
    """Columns of rows that only names tell apart, and that follow one another in one batch.

    A lake table must not get other names while such rows wait: after a crash it has them before the rows are applied.
    """

    def __init__(self, columns: Mapping[str, int | None] | None = None) -> None:
        self._columns = dict(columns or {})
        """by name the number in the lake; None: the lake does not have the column any more"""

    def contradict(self, lake: TableSchema) -> bool:
        """Whether the next columns of the lake table give one of these names, or one of these columns, to another."""
        numbers = {column.name: column.attnum for column in lake.source_columns}
        names = {column.attnum: column.name for column in lake.source_columns if column.attnum}
        return any(
            (name in numbers and (number is None or number not in (0, numbers[name])))
            or (number is not None and names.get(number, name) != name)
            for name, number in self._columns.items()
        )

    def following(self, written: TableSchema, lake: TableSchema) -> Unnumbered:
        """With the columns of one more schema of the source, which the lake table now has."""
        names = [*self._columns, *(column.name for column in written.columns if not column.attnum)]
        numbers = {column.name: column.attnum for column in lake.source_columns}
        return Unnumbered({name: numbers.get(name) for name in names})


def rekeyed(before: TableSchema, after: TableSchema) -> bool:
    """Whether the columns that identify rows, or their kind of key, changed."""
    return _key_numbers(before) != _key_numbers(after) or before.key_index != after.key_index


def keyed_as(lake: TableSchema, written: TableSchema) -> TableSchema:
    """A lake table's schema with the key that rows were written with. Raises Incompatible if it lacks its columns."""
    names: dict[int | str, str] = {column.name: column.name for column in lake.source_columns}
    names |= {column.attnum: column.name for column in lake.source_columns if column.attnum}
    wanted = [column.attnum or column.name for column in written.key_columns]
    if not all(column in names for column in wanted):
        raise Incompatible("a column of its key was dropped")
    key = tuple(names[column] for column in wanted)
    following = replace(lake, key=key, identity=written.identity, key_index=written.key_index)
    if not rekeyed(lake, following):
        return lake
    _require_same_key(lake, following)
    return following


def _require_same_key(lake: TableSchema, following: TableSchema) -> None:
    """Leaves are described one by one, so there is no commit from which on all their rows have the new key."""
    if following.partitioned and rekeyed(lake, following):
        raise Incompatible("its key changed")


def require_fillable(lake: TableSchema, target: TableSchema) -> None:
    """Raises Incompatible if existing rows have values in a new column that only the source table has."""
    for column in changes(lake, target).added:
        if not column.missing_known:
            raise Incompatible(f"column {column.name} was added with a different value in each row")
        if column.missing is not None and not _writable(column.lake, column.missing):
            raise Incompatible(f"column {column.name} was added with a default that only the table has")


def changes(lake: TableSchema, target: TableSchema) -> ColumnChanges:
    """The changes from a lake table's columns to those of the schema that `follow` returned."""
    before = {column.attnum or column.name: column for column in lake.columns}
    after = {column.attnum or column.name: column for column in target.columns}
    if not before.keys() & after.keys():
        # A table that was made before attribute numbers were stored.
        before = {column.name: column for column in lake.columns}
        after = {column.name: column for column in target.columns}
    both = [(before[one], after[one]) for one in before if one in after]
    return ColumnChanges(
        added=tuple(column for one, column in after.items() if one not in before),
        dropped=tuple(column for one, column in before.items() if one not in after),
        renamed=tuple((old, new) for old, new in both if old.name != new.name),
        widened=tuple((old, new) for old, new in both if old.lake != new.lake),
    )


def source_of(column: Column, segment: TableSchema) -> Column | None:
    """The column of an older schema that a lake column takes its values from; None if there is none."""
    if column.attnum:
        found = next((one for one in segment.columns if one.attnum == column.attnum), None)
        if found is not None:
            return found
    return next((one for one in segment.columns if one.name == column.name and not one.attnum * column.attnum), None)


def _paired(
    before: tuple[Column, ...], after: tuple[Column, ...], in_order: bool
) -> tuple[list[tuple[Column, Column]], list[Column], list[Column]]:
    """Columns that stayed, were added and were dropped. Kept ones count as dropped before."""
    alive = [column for column in before if not column.kept]
    if all(column.attnum for column in (*alive, *after)):
        known = {column.attnum: column for column in before}
        pairs = [(known[column.attnum], column) for column in after if column.attnum in known]
        gone = {column.attnum for column in after}
        return pairs, [c for c in after if c.attnum not in known], [c for c in alive if c.attnum not in gone]
    by_name = {column.name: column for column in alive}
    pairs = [(by_name[c.name], _numbered(c, by_name[c.name])) for c in after if c.name in by_name]
    names = {column.name for column in after}
    added = [column for column in after if column.name not in by_name]
    dropped = [column for column in alive if column.name not in names]
    if added and dropped:
        raise Unclear(f"was column {dropped[0].name} renamed to {added[0].name}, or is that a new one?")
    if in_order and (moved := next((new for (one, _), (two, new) in pairwise(pairs) if one.attnum > two.attnum), None)):
        # PostgreSQL lists columns by their numbers.
        raise Unclear(f"is column {moved.name} the same column as before, or was another one renamed to it?")
    return pairs, added, dropped


def _numbered(column: Column, known: Column) -> Column:
    return column if column.attnum else replace(column, attnum=known.attnum)


def _carried(before: Column, after: Column) -> Column:
    """The column as the lake will have it. Raises Incompatible if existing values would have to change."""
    if before.mask != after.mask:
        raise Incompatible(
            f"the mask of column {after.name} became {after.mask or 'none'}, was {before.mask or 'none'}"
        )
    if not same_values(before, after):
        raise Incompatible(f"column {after.name} became {after.type_name}, was {before.type_name}")
    # The value of older rows was fixed when the column came to the lake.
    return replace(after, missing=before.missing, missing_known=before.missing_known, kept=False)


def _key_numbers(schema: TableSchema) -> frozenset[int | str]:
    return frozenset(column.attnum or column.name for column in schema.key_columns)


def _rewritten(before: Iterable[HeapFile], after: Iterable[HeapFile]) -> bool:
    files = {heap.oid: heap.file for heap in before}
    return any(files.get(heap.oid, heap.file) != heap.file for heap in after)


def _files(lake: tuple[HeapFile, ...], source: tuple[HeapFile, ...]) -> tuple[HeapFile, ...]:
    """The lake's partitions with the files of the source; added and removed ones are judged elsewhere."""
    files = {heap.oid: heap.file for heap in source}
    return tuple(replace(heap, file=files.get(heap.oid, heap.file)) for heap in lake) if lake else source


def _writable(lake: LakeType, text: str) -> bool:
    """Whether a default can be stored as a constant of a lake type."""
    if lake.is_list:
        return text == "{}"
    form = TYPES.carrier(lake).default
    return form is None or form.fullmatch(text) is not None
