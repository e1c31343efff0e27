"""The kind of commit for a batch, from its facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wal2lake.change import Truncation
from wal2lake.changelog.manifest import Segment
from wal2lake.errors import CopyNeeded
from wal2lake.lake.applying.commit_plan import How, plan_commit
from wal2lake.lake.model import Batch
from wal2lake.position import Lsn
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType

COLUMNS = (Column("id", 23, -1, "int4", LakeType.parse("int"), attnum=1),)
KEYED = TableSchema(1, TableId("public", "t"), COLUMNS, ("id",), ReplicaIdentity.DEFAULT)
EMPTIED = Truncation(Lsn(5), 1, 9, "(id < 5)", columns=(("id", 1),))
WHOLE = TableSchema(1, TableId("public", "t"), COLUMNS, (), ReplicaIdentity.FULL)


def segment(inserts: int = 0, updates: int = 0, deletes: int = 0, key_changes: int = 0, unchanged: int = 0) -> Segment:
    return Segment("f", inserts + updates + deletes, 1, 1, inserts, updates, deletes, key_changes, unchanged)


def batch(*segments: Segment, truncations: tuple[Truncation, ...] = (), skip: int | None = None) -> Batch:
    given = tuple(("f", one) for one in segments)
    return Batch(Lsn(100), 1, given, truncations, None if skip is None else Lsn(skip))


@pytest.mark.parametrize(
    ("schema", "changes", "how"),
    [
        (KEYED, batch(), How.NOTHING),
        (KEYED, batch(segment(inserts=3)), How.APPEND),
        (WHOLE, batch(segment(inserts=3), segment(inserts=1)), How.APPEND),
        (KEYED, batch(segment(inserts=3), segment(deletes=1)), How.MERGE),
        (WHOLE, batch(segment(deletes=1)), How.MATCH),
        (KEYED, batch(segment(inserts=1), truncations=(Truncation(Lsn(5), 1),)), How.REPLACE),
        (WHOLE, batch(truncations=(Truncation(Lsn(5), 1),)), How.REPLACE),
        (KEYED, batch(truncations=(Truncation(Lsn(5), 1),), skip=6), How.NOTHING),
        (KEYED, batch(segment(inserts=1), truncations=(Truncation(Lsn(5), 1),), skip=6), How.APPEND),
        (KEYED, batch(segment(inserts=1), truncations=(EMPTIED,)), How.MERGE),
        (WHOLE, batch(segment(inserts=1), truncations=(EMPTIED,)), How.MATCH),
    ],
)
def test_facts_decide_the_commit(schema: TableSchema, changes: Batch, how: How) -> None:
    assert plan_commit(schema, changes).how is how


def test_only_the_last_truncation_of_the_whole_table_and_what_follows_counts() -> None:
    truncations = (
        Truncation(Lsn(5), 1), Truncation(Lsn(5), 3, 9, None), Truncation(Lsn(8), 2), Truncation(Lsn(8), 4, 9, None),
    )  # fmt: skip
    planned = plan_commit(KEYED, batch(truncations=truncations))
    assert planned.after == (8, 2)
    assert planned.emptied == truncations[3:]
    assert planned.gone == ()


def test_partition_whose_rows_are_unknown_needs_a_re_copy() -> None:
    with pytest.raises(CopyNeeded, match="TRUNCATE"):
        plan_commit(KEYED, batch(truncations=(Truncation(Lsn(5), 1, 9, None),)))


def test_emptied_rows_are_found_by_the_numbers_of_columns() -> None:
    """Another column may have had the name by then."""
    swapped = replace(KEYED, columns=(replace(COLUMNS[0], attnum=2), replace(COLUMNS[0], name="n", attnum=1)))
    assert plan_commit(swapped, batch(truncations=(EMPTIED,))).gone == ("(`n` < 5L)",)
    with pytest.raises(CopyNeeded, match="TRUNCATE"):
        plan_commit(KEYED, batch(truncations=(replace(EMPTIED, columns=None),)))


def test_batch_of_updates_and_deletes_needs_no_insert() -> None:
    assert not plan_commit(KEYED, batch(segment(updates=2, deletes=1))).may_insert
    assert plan_commit(KEYED, batch(segment(updates=2, key_changes=1))).may_insert
