"""When a table needs maintenance, and which of its files are written again."""

from __future__ import annotations

import pytest

from wal2lake import retry
from wal2lake.config import MaintenanceConfig
from wal2lake.lake.format import DataFile
from wal2lake.lake.iceberg.metadata import facts_of
from wal2lake.lake.maintenance.policy import (
    DELETED_SHARE,
    FULL_SIZE,
    PART_SIZE,
    PARTS,
    PRESSING,
    QUIET_FILES,
    QUIET_SECONDS,
    STEP_SIZE,
    TINY,
    Memory,
    after_failure,
    after_success,
    choose,
    due,
    seen,
    tidied_until,
)
from wal2lake.lake.model import Facts, Work

SETTINGS = MaintenanceConfig(small_files=30, snapshot_retention=1000, snapshots_kept=100)
NOW = 1_000_000.0
FEW = 15


def facts(**numbers: float) -> Facts:
    """A table of a few full files, whose versions are young."""
    usual: dict[str, float] = {
        "data_files": 3,
        "records": 1000,
        "size": 3 * FULL_SIZE,
        "snapshots": 5,
        "oldest": NOW - 10,
    }
    return Facts(**(usual | numbers))  # type: ignore[arg-type]  # numbers of the right kind


def files(*sizes: int) -> list[DataFile]:
    return [DataFile(size, 100, 0) for size in sizes]


def test_a_table_that_says_nothing_needs_nothing() -> None:
    assert due(Facts(), Memory(), SETTINGS, NOW) is None


def test_a_table_as_it_was_copied_needs_nothing() -> None:
    assert due(facts(), Memory(), SETTINGS, NOW) is None


def test_full_files_are_no_reason_however_many() -> None:
    assert due(facts(data_files=500, size=500 * FULL_SIZE), Memory(), SETTINGS, NOW) is None


def test_small_files_are_joined_when_there_are_enough() -> None:
    assert due(facts(data_files=3 + 29), Memory(), SETTINGS, NOW) is None
    work = due(facts(data_files=3 + 30), Memory(), SETTINGS, NOW)
    assert work is not None and work.compact and not work.expire and not work.urgent


def test_a_table_that_is_left_alone_is_tidied_for_its_readers() -> None:
    few = facts(data_files=3 + QUIET_FILES, newest=NOW - QUIET_SECONDS + 1)
    assert due(few, Memory(), SETTINGS, NOW) is None
    work = due(few, Memory(), SETTINGS, NOW + 1)
    assert work is not None and work.compact and not work.urgent
    assert due(few, Memory(files=few.files), SETTINGS, NOW + 1) is None


def test_files_of_deleted_positions_count_where_they_outnumber_the_data_files() -> None:
    work = due(facts(delete_files=40), Memory(), SETTINGS, NOW)
    assert work is not None and work.compact


def test_files_that_were_not_worth_joining_are_no_reason_again() -> None:
    memory = Memory(files=20)
    assert due(facts(data_files=49), memory, SETTINGS, NOW) is None
    assert due(facts(data_files=50), memory, SETTINGS, NOW) is not None


def test_a_table_that_became_small_is_not_measured_by_what_it_was() -> None:
    memory = seen(Memory(files=1000, deleted=900), facts(data_files=10, deleted=0, size=100))
    assert (memory.files, memory.deleted) == (10, 0)
    assert due(facts(data_files=40, size=100), memory, SETTINGS, NOW) is not None
    assert seen(memory, facts(data_files=40)) == memory


def test_deleted_rows_are_a_reason_from_a_share_on() -> None:
    assert due(facts(deleted=1000 * DELETED_SHARE - 1), Memory(), SETTINGS, NOW) is None
    work = due(facts(deleted=1000 * DELETED_SHARE), Memory(), SETTINGS, NOW)
    assert work is not None and work.compact


def test_a_table_that_is_never_idle_gets_its_maintenance_at_last() -> None:
    work = due(facts(data_files=3 + round(30 * PRESSING)), Memory(), SETTINGS, NOW)
    assert work is not None and work.urgent


def test_old_versions_expire_when_they_are_old_and_many() -> None:
    old = NOW - 1300
    assert due(facts(snapshots=1000), Memory(), SETTINGS, NOW) is None
    assert due(facts(snapshots=120, oldest=old), Memory(), SETTINGS, NOW) is None
    work = due(facts(snapshots=126, oldest=old), Memory(), SETTINGS, NOW)
    assert work is not None and work.expire and not work.compact and not work.urgent
    overdue = due(facts(snapshots=401, oldest=NOW - 4001), Memory(), SETTINGS, NOW)
    assert overdue is not None and overdue.urgent


def test_nothing_is_due_when_it_is_switched_off() -> None:
    off = SETTINGS.model_copy(update={"enabled": False})
    assert due(facts(data_files=1000), Memory(), off, NOW) is None


def test_after_a_failure_it_waits_longer_each_time() -> None:
    memory, waits = Memory(files=7), []
    for _ in range(9):
        memory = after_failure(memory, NOW)
        waits.append(memory.not_before - NOW)
    assert (
        waits[:3] == [retry.COMPACTION.first, 2 * retry.COMPACTION.first, 4 * retry.COMPACTION.first]
        and waits[-1] == retry.COMPACTION.most
    )
    assert due(facts(data_files=100), memory, SETTINGS, NOW + retry.COMPACTION.most - 1) is None
    assert due(facts(data_files=100), memory, SETTINGS, NOW + retry.COMPACTION.most) is not None


COMPACTION = Work(compact=True, expire=False, urgent=False)
EXPIRY = Work(compact=False, expire=True, urgent=False)


def test_what_a_step_had_no_room_for_is_due_at_once() -> None:
    before, left = facts(data_files=300), facts(data_files=200)
    memory = after_success(Memory(failures=3), COMPACTION, before, left, False, NOW)
    assert memory.failures == 0 and due(left, memory, SETTINGS, NOW) is not None
    assert due(left, after_success(Memory(), COMPACTION, before, left, True, NOW), SETTINGS, NOW) is None


def test_a_step_without_any_effect_is_not_repeated() -> None:
    same = facts(data_files=300, deleted=900)
    assert due(same, after_success(Memory(), COMPACTION, same, same, False, NOW), SETTINGS, NOW) is None


def test_versions_that_others_hold_are_not_asked_for_all_the_time() -> None:
    held = facts(snapshots=1000, oldest=NOW - 9000)
    memory = after_success(Memory(files=5), EXPIRY, held, held, True, NOW)
    assert memory.files == 5
    assert due(held, memory, SETTINGS, NOW + 240) is None
    again = due(held, memory, SETTINGS, NOW + 250)
    assert again is not None and again.expire


def test_numbers_that_a_summary_lacks_count_as_none() -> None:
    assert facts_of({"total-data-files": "4"}, 2, 5000) == Facts(data_files=4, snapshots=2, oldest=5.0)


def test_tiny_files_are_joined_and_a_large_one_is_left_alone() -> None:
    rewrite = choose(files(*[1000] * 30, 50_000_000), FEW)
    assert rewrite is not None and rewrite.complete
    assert 1000 < rewrite.below <= 50_000_000 and rewrite.share == 1.0


def test_a_joined_file_is_written_again_only_with_half_its_size_of_others() -> None:
    one = TINY * 2
    rewrite = choose(files(*[one // 32] * 32, one * 2, FULL_SIZE), FEW)
    assert rewrite is not None and rewrite.below > one * 2
    rewrite = choose(files(*[one // 32] * 32, one * 3, FULL_SIZE), FEW)
    assert rewrite is not None and rewrite.below <= one * 3


def test_files_of_one_size_are_joined_whatever_the_size() -> None:
    rewrite = choose(files(*[3_000_000] * 20), FEW)
    assert rewrite is not None and rewrite.below > 3_000_000


def test_a_table_is_left_in_files_for_several_cores() -> None:
    copied = [6_000_000] * PARTS
    assert choose(files(*copied), 2) is None
    rewrite = choose(files(*copied, *[20_000] * 20), FEW)
    assert rewrite is not None and 20_000 < rewrite.below <= 6_000_000
    assert rewrite.target == pytest.approx(6_000_000, rel=0.01)
    small = choose(files(*[PART_SIZE // 8] * 20), FEW)
    assert small is not None and small.target == PART_SIZE
    large = choose(files(*[FULL_SIZE] * 100, *[20_000] * 20), FEW)
    assert large is not None and large.target == FULL_SIZE


def test_a_few_files_are_not_worth_it() -> None:
    assert choose(files(*[1000] * (FEW - 1)), FEW) is None
    assert choose(files(50_000_000), 1) is None
    assert choose([], FEW) is None


def test_a_step_is_bounded_and_says_that_more_is_left() -> None:
    sizes = [2_000_000 + i for i in range(100)]
    rewrite = choose(files(*sizes), FEW)
    assert rewrite is not None and not rewrite.complete
    assert sum(size for size in sizes if size < rewrite.below) <= STEP_SIZE


def test_files_too_large_to_join_in_a_step_are_let_be() -> None:
    assert choose(files(*[STEP_SIZE - 1] * 50), FEW) is None


def test_the_most_worn_files_come_first_and_one_at_least() -> None:
    big = STEP_SIZE * 2
    worn = [DataFile(big, 100, deleted) for deleted in (10, 30, 60, 45)]
    rewrite = choose(worn, FEW)
    assert rewrite is not None and rewrite.share == pytest.approx(0.6) and not rewrite.complete
    assert rewrite.below == 0
    small = [DataFile(STEP_SIZE // 4, 100, deleted) for deleted in (10, 30, 60, 45)]
    rewrite = choose(small, FEW)
    assert rewrite is not None and rewrite.share == pytest.approx(0.3) and rewrite.complete


def test_a_file_without_a_row_left_is_dropped_at_no_cost() -> None:
    rewrite = choose([DataFile(STEP_SIZE * 9, 100, 100), DataFile(FULL_SIZE, 100, 0)], FEW)
    assert rewrite is not None and rewrite.share == 1.0 and rewrite.below == 0


def test_write_amplification_stays_logarithmic() -> None:
    """Files of 20 kB, one per commit, joined whenever 30 more have come: how often is a byte written?"""
    sizes: list[int] = []
    written = 0
    for _ in range(6000):
        sizes.append(20_000)
        if len(sizes) < 45:
            continue
        rewrite = choose(files(*sizes), FEW)
        assert rewrite is not None
        joined = sum(size for size in sizes if size < rewrite.below)
        written += joined
        pieces = -(-joined // rewrite.target)
        sizes = [size for size in sizes if size >= rewrite.below] + [joined // pieces] * pieces
        assert len(sizes) < 30
    assert written < 12 * 6000 * 20_000


def test_a_table_left_alone_keeps_no_deleted_row() -> None:
    worn = facts(deleted=1, newest=NOW - QUIET_SECONDS)
    assert due(worn, Memory(), SETTINGS, NOW) == Work(compact=True, expire=False, urgent=False, tidy=True)
    assert due(worn, Memory(), SETTINGS, NOW, may_tidy=False) is None
    assert due(facts(deleted=1, newest=NOW - QUIET_SECONDS + 1), Memory(), SETTINGS, NOW) is None
    tidying = due(worn, after_success(Memory(), COMPACTION, worn, worn, True, NOW), SETTINGS, NOW)
    assert tidying is not None and tidying.tidy, "what joining files has left is not what tidying has left"
    assert due(worn, after_success(Memory(), tidying, worn, worn, True, NOW), SETTINGS, NOW) is None


def test_tidying_writes_every_file_again_that_has_a_deleted_row() -> None:
    layout = [DataFile(STEP_SIZE // 4, 1000, 1), DataFile(STEP_SIZE // 4, 1000, 30), DataFile(STEP_SIZE // 4, 1000, 0)]
    assert choose(layout, FEW) is None
    rewrite = choose(layout, FEW, tidy=True)
    assert rewrite is not None
    assert rewrite.below == 0
    assert rewrite.share == pytest.approx(0.001)
    assert rewrite.complete


def test_tidying_a_large_table_takes_several_steps() -> None:
    layout = [DataFile(STEP_SIZE // 2, 1000, deleted) for deleted in (5, 10, 20, 40)]
    rewrite = choose(layout, FEW, tidy=True)
    assert rewrite is not None
    assert rewrite.share == pytest.approx(0.02)
    assert not rewrite.complete


def test_tidying_takes_a_small_share_of_the_time() -> None:
    assert tidied_until(NOW, 3.0) == pytest.approx(NOW + 3.0 * 19)


@pytest.mark.parametrize(
    ("rows", "bytes", "wide"), [(10, 10_000, False), (10**6, 10**8, False), (10**6, 10**9, True), (10**4, 10**8, True)]
)
def test_rows_are_wide_by_their_average_in_a_table_that_is_not_small(rows: int, bytes: int, wide: bool) -> None:
    assert Facts(records=rows, size=bytes).wide is wide
