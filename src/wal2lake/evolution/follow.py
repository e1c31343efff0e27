"""How a lake table follows a change of its source table's columns: pure judgements on two schemas.

    lake table's schema ── follow ──► the schema that it is to have ── changes ──► added, dropped, renamed, widened
    and a later one of the source  └► Incompatible: only a re-copy can follow
                                   └► Unclear: it can't be told what happened to a column

Columns are known by PostgreSQL's attribute number, which a rename keeps and which is never given twice.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from ..pgtypes import Kind, LakeType, Masking
from ..schema import Column, HeapFile, TableSchema
from .widening import same_values


class Incompatible(Exception):
    """why a lake table can't follow without a re-copy"""


class Unclear(Exception):
    """a question that only somebody who knows the change can answer; whatever the answer, a copy has it"""


class MasksLost(Unclear):
    """whether masks were given up with a name: a copy must not guess that"""


@dataclass(frozen=True)
class Changes:
    """What has to be done to a lake table's columns; (before, after) where a column stays."""

    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    renamed: tuple[tuple[Column, Column], ...] = ()
    widened: tuple[tuple[Column, Column], ...] = ()

    @property
    def of_rows(self) -> bool:
        """Whether rows that are there get values that they have not."""
        return any(column.missing is not None for column in self.added)


def follow(lake: TableSchema, source: TableSchema, keep_dropped: bool = False) -> TableSchema:
    """The schema of a lake table after the next change of its source. Raises Incompatible or Unclear.

    The lake table's own name stays, whatever the source calls the table.
    """
    _require_same_selection(lake, source)
    _require_logged(lake, source)
    pairs, added, dropped = _paired(lake.columns, source.columns, in_order=not source.partitioned)
    if again := {column.name for column in added} & {column.name for column in dropped}:
        # Messages carry no numbers: rows written before and after such a change look alike.
        raise Incompatible(f"column {min(again)} was dropped and added again")
    columns = [_carried(before, after) for before, after in pairs]
    # Rows that were rewritten may have got a value in each new column that has no constant default.
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
    # Who is a partition, and with which rows, is judged by looks at the catalog alone: see `membership`.
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
    """The column with the facts that its values in the lake rely on; of a new one, nobody has compared them yet."""
    if before is None:
        return replace(column, relies=None, unaltered=False)
    return replace(column, relies=before.relies, unaltered=before.unaltered)


def texts_differ(lake: TableSchema, source: TableSchema) -> str | None:
    """Which values in the lake may have another text by now, though no change of a row told so; None if none has."""
    for before, after in _by_number(lake, source):
        if before.relies is None:
            # The rows came before anybody looked at their type: who altered it, and when, can't be told.
            if after.relies and not after.unaltered:
                return f"the type of column {after.name}, {after.type_name}, was altered, and it can't be told when"
        elif not set(before.relies) <= set(after.relies or ()):
            return f"a label or an attribute of {after.type_name}, the type of column {after.name}, was altered"
    return None


def facts_differ(lake: TableSchema, source: TableSchema) -> bool:
    """Whether a look at the catalog says something about the text of values that the lake table does not know."""
    unknown = any(before.relies is None and after.relies for before, after in _by_number(lake, source))
    return unknown or texts_differ(lake, source) is not None


def with_facts(lake: TableSchema, source: TableSchema) -> TableSchema:
    """The same schema with the facts of the source where it has none."""
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
    """Rows and columns that were left out until now are in no change: only a copy brings them."""
    if lake.where != source.where:
        raise Incompatible("its row filter became another one")
    if lake.only != source.only:
        raise Incompatible("its list of columns became another one")
    if lake.entry != source.entry:
        raise Incompatible("it is published by another publication, or was out of it for a while")
    if lake.id != source.id and lake.masked and _masks(lake) != _masks(source):
        # The settings that hid something may have been lost with the name. Nobody but the operator can say.
        raise MasksLost(f"{source.id} was {lake.id} and has not the masks that it had: is that meant?")


def _require_logged(lake: TableSchema, source: TableSchema) -> None:
    """A table may have been unlogged for a while, unless PostgreSQL refuses that; its file of rows is another one then.

    What else gives it another file can't be told from that. Partitions are judged by `moved`.
    """
    if lake.partitioned or source.partitioned or (lake.by_name and source.by_name):
        return
    if _rewritten(lake.heaps, source.heaps):
        raise Incompatible("its rows were rewritten, and it may have been unlogged meanwhile")


def _masks(schema: TableSchema) -> dict[int | str, Masking]:
    return {column.attnum or column.name: column.mask for column in schema.source_columns if column.mask}


def numbered(written: TableSchema, lake: TableSchema) -> TableSchema:
    """A schema of the source with the numbers that `follow` has found for its columns, by name."""
    known = {column.name: column.attnum for column in lake.source_columns}
    columns = tuple(
        column if column.attnum else replace(column, attnum=known[column.name]) for column in written.columns
    )
    return replace(written, columns=columns)


def rekeyed(before: TableSchema, after: TableSchema) -> bool:
    """Whether rows are told apart by other columns than before, or by another key over the same columns."""
    return _key_numbers(before) != _key_numbers(after) or before.key_index != after.key_index


def keyed_as(lake: TableSchema, written: TableSchema) -> TableSchema:
    """A lake table's schema with the key that rows were written with. Raises Incompatible if it has not its columns."""
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
    """Leaves are described one by one: no commit is known from which on the rows of all have another key."""
    if following.partitioned and rekeyed(lake, following):
        raise Incompatible("its rows are told apart by another key")


def require_fillable(lake: TableSchema, target: TableSchema) -> None:
    """Raises Incompatible if the rows of the lake table have values in a new column that nobody can tell."""
    for column in changes(lake, target).added:
        if not column.missing_known:
            raise Incompatible(f"column {column.name} was added with values of its own in every row")
        if column.missing is not None and not _writable(column.lake, column.missing):
            raise Incompatible(f"column {column.name} was added with a default that has to be read from the table")


def changes(lake: TableSchema, target: TableSchema) -> Changes:
    """From the columns of a lake table to those that `follow` said it is to have."""
    before = {column.attnum or column.name: column for column in lake.columns}
    after = {column.attnum or column.name: column for column in target.columns}
    if not before.keys() & after.keys():
        # A table from before the numbers were kept.
        before = {column.name: column for column in lake.columns}
        after = {column.name: column for column in target.columns}
    both = [(before[one], after[one]) for one in before if one in after]
    return Changes(
        added=tuple(column for one, column in after.items() if one not in before),
        dropped=tuple(column for one, column in before.items() if one not in after),
        renamed=tuple((old, new) for old, new in both if old.name != new.name),
        widened=tuple((old, new) for old, new in both if old.lake != new.lake),
    )


def source_of(column: Column, segment: TableSchema) -> Column | None:
    """The column of an older schema whose values a lake column takes; None if that schema has none."""
    if column.attnum:
        found = next((one for one in segment.columns if one.attnum == column.attnum), None)
        if found is not None:
            return found
    return next((one for one in segment.columns if one.name == column.name and not one.attnum * column.attnum), None)


def _paired(
    before: tuple[Column, ...], after: tuple[Column, ...], in_order: bool
) -> tuple[list[tuple[Column, Column]], list[Column], list[Column]]:
    """Columns that stayed, came and went. Kept ones have gone already."""
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
        raise Unclear(f"is column {added[0].name} the renamed {dropped[0].name}, or a new one?")
    if in_order and (moved := next((new for (one, _), (two, new) in pairwise(pairs) if one.attnum > two.attnum), None)):
        # PostgreSQL lists columns by their numbers.
        raise Unclear(f"is column {moved.name} the one of that name, or has another one got its name?")
    return pairs, added, dropped


def _numbered(column: Column, known: Column) -> Column:
    return column if column.attnum else replace(column, attnum=known.attnum)


def _carried(before: Column, after: Column) -> Column:
    """The column as the lake is to have it. Raises Incompatible if values that are there would have to change."""
    if before.mask != after.mask:
        raise Incompatible(
            f"the mask of column {after.name} became {after.mask or 'none'}, was {before.mask or 'none'}"
        )
    if not same_values(before, after):
        raise Incompatible(f"column {after.name} became {after.type_name}, was {before.type_name}")
    # What older rows have was settled when the column came to the lake.
    return replace(after, missing=before.missing, missing_known=before.missing_known, kept=False)


def _key_numbers(schema: TableSchema) -> frozenset[int | str]:
    return frozenset(column.attnum or column.name for column in schema.key_columns)


def _rewritten(before: Iterable[HeapFile], after: Iterable[HeapFile]) -> bool:
    files = {heap.oid: heap.file for heap in before}
    return any(files.get(heap.oid, heap.file) != heap.file for heap in after)


def _files(lake: tuple[HeapFile, ...], source: tuple[HeapFile, ...]) -> tuple[HeapFile, ...]:
    """The lake's partitions with the files that they have since; who came and went is another question."""
    files = {heap.oid: heap.file for heap in source}
    return tuple(replace(heap, file=files.get(heap.oid, heap.file)) for heap in lake) if lake else source


_PLAIN = re.compile(r"-?\d+(\.\d+)?")
_FORMS = {
    Kind.BOOLEAN: re.compile("[tf]"),
    Kind.INT: _PLAIN,
    Kind.LONG: _PLAIN,
    Kind.DECIMAL: _PLAIN,
    Kind.FLOAT: re.compile(r"-?(\d+(\.\d+)?(e[+-]?\d+)?|Infinity)|NaN"),
    Kind.DOUBLE: re.compile(r"-?(\d+(\.\d+)?(e[+-]?\d+)?|Infinity)|NaN"),
    Kind.DATE: re.compile(r"\d{4}-\d\d-\d\d"),
    Kind.TIMESTAMP: re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?"),
    Kind.TIMESTAMPTZ: re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?\+00"),
    Kind.BINARY: re.compile(r"\\x([0-9a-f]{2})*"),
}


def _writable(lake: LakeType, text: str) -> bool:
    """Whether a default can be written down as a constant of a lake type."""
    if lake.is_list:
        return text == "{}"
    form = _FORMS.get(lake.kind)
    return form is None or form.fullmatch(text) is not None
