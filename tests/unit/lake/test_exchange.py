"""The rows of a lake table that an exchange of partitions replaces, and when the whole table must be copied."""

from __future__ import annotations

from dataclasses import replace

from wal2lake.evolution import moved
from wal2lake.lake import Exchange, exchange
from wal2lake.schema import Bounds, Column, HeapFile, Membership, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType

INT = LakeType.parse("int")
COLUMNS = (Column("id", 23, -1, "integer", INT, attnum=1), Column("n", 23, -1, "integer", INT, attnum=2))


def leaf(oid: int, since: int = 100, low: int | None = None, made: bool = False) -> HeapFile:
    bounds = (
        None if low is None else Bounds(f"((id IS NOT NULL) AND (id >= {low}) AND (id < {low + 10}))", (("id", 1),))
    )
    return HeapFile(oid, oid, (Membership(oid, since, made),), bounds=bounds)


def table(*leaves: HeapFile) -> TableSchema:
    return TableSchema(1, TableId("public", "p"), COLUMNS, ("id",), ReplicaIdentity.DEFAULT, True, leaves)


def within(low: int, name: str = "id") -> str:
    return f"((`{name}` IS NOT NULL) AND (`{name}` >= {low}L) AND (`{name}` < {low + 10}L))"


def outside(*lows: int, name: str = "id") -> str:
    """In none of the partitions that the source has: whatever is there came with one that went."""
    return f"(NOT ({' OR '.join(within(low, name) for low in lows)}))"


ONE, TWO = leaf(11, low=0), leaf(12, low=10)
LAKE = table(ONE, TWO)


def judged(source: TableSchema, lake: TableSchema = LAKE) -> Exchange | None:
    partitions = moved(lake, source)
    assert partitions is not None
    return exchange(lake, source, partitions)


def test_a_partition_attached_with_rows_is_copied_into_its_bounds() -> None:
    new = leaf(13, 200, 20)
    assert judged(table(ONE, TWO, new)) == Exchange((new,), (within(20),), frozenset({13}))


def test_a_partition_that_went_leaves_nothing_within_its_bounds() -> None:
    assert judged(table(TWO)) == Exchange((), (within(0), outside(10)), frozenset({11}))


def test_a_partition_attached_again_is_copied_over_its_old_rows() -> None:
    again = leaf(11, 200, 0)
    assert judged(table(again, TWO)) == Exchange((again,), (outside(0, 10), within(0)), frozenset({11}))
    other = leaf(11, 200, 40)
    assert judged(table(other, TWO)) == Exchange((other,), (outside(40, 10), within(0), within(40)), frozenset({11}))


def test_a_new_partition_is_copied_if_bounds_were_freed_that_may_be_its_own() -> None:
    new = leaf(13, 200, 0, made=True)
    assert judged(table(TWO, new)) == Exchange((new,), (within(0), outside(10, 0)), frozenset({11, 13}))


def test_bounds_without_a_condition_need_a_copy_of_the_whole_table() -> None:
    assert judged(table(ONE, TWO, leaf(13, 200))) is None
    assert judged(table(TWO), table(leaf(11), TWO)) is None
    assert judged(table(ONE, TWO), table(ONE, TWO, HeapFile(13, 0))) is None


def test_rows_within_freed_bounds_may_be_in_a_default_partition() -> None:
    default = leaf(14)
    assert judged(table(TWO, default), table(ONE, TWO, default)) is None
    new = leaf(13, 200, 20)
    assert judged(table(ONE, TWO, default, new), table(ONE, TWO, default)) is not None


def test_bounds_mean_the_column_that_had_the_name() -> None:
    renamed = (replace(COLUMNS[0], name="n"), replace(COLUMNS[1], name="id"))
    found = judged(replace(table(TWO), columns=renamed), replace(LAKE, columns=renamed))
    assert found is not None and found.replaced == (within(0, "n"), outside(10, name="n"))
