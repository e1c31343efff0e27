"""Which tables of a group with a slot get triggers, as check says it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wal2lake.config import Config
from wal2lake.preflight.findings import Severity
from wal2lake.preflight.table_modes import TableMode, judge_modes
from wal2lake.schema import ReplicaIdentity, TableId
from wal2lake.source.tables import RefusedHeap

ORDERS, LINES = TableId("public", "orders"), TableId("public", "lines")
KEYLESS = RefusedHeap(LINES, ReplicaIdentity.DEFAULT, None, True, (), False)
KEYED = TableMode(ORDERS, "auto", (), None)
UNIDENTIFIED = TableMode(LINES, "auto", [KEYLESS], None)


def judged(*tables: TableMode) -> dict[str, tuple[Severity, str]]:
    return {one.object: (one.level, one.consequence) for one in judge_modes("g", tables, ours=True)}


def test_a_group_of_tables_that_can_be_published_has_nothing_to_say() -> None:
    assert judged(KEYED, replace(KEYED, capture="wal")) == {}


def test_a_table_without_an_identity_gets_triggers_and_the_group_lists_both_kinds() -> None:
    found = judged(KEYED, UNIDENTIFIED)
    assert found["public.lines"][0] is Severity.NOTES and "no primary key, so it gets" in found["public.lines"][1]
    assert found["group g"][1] == "captures from the WAL: public.orders; by triggers: public.lines"


@pytest.mark.parametrize(
    "table",
    [replace(UNIDENTIFIED, capture="wal"), replace(UNIDENTIFIED, obstacle="the role does not own it")],
    ids=["by its settings", "no triggers possible"],
)
def test_without_triggers_it_is_refused_with_what_heals(table: TableMode) -> None:
    level, consequence = judged(table)["public.lines"]
    assert level is Severity.BLOCKS and "refuses UPDATE and DELETE" in consequence


def test_triggers_that_are_asked_for_and_can_not_be_installed_block() -> None:
    level, consequence = judged(replace(KEYED, capture="trigger", obstacle="tables inherit from it"))["public.orders"]
    assert (level, consequence) == (Severity.BLOCKS, "can't be captured by triggers: tables inherit from it")


def test_what_a_filter_refuses_gets_no_triggers() -> None:
    heap = replace(KEYLESS, unidentified=False, filtered_by=["s"])
    assert judged(replace(UNIDENTIFIED, refused=[heap]))["public.lines"][0] is Severity.BLOCKS


@pytest.mark.parametrize(
    ("group", "table", "capture"),
    [
        ("auto", None, "auto"), ("wal", None, "wal"), ("poll", None, "wal"), ("wal", "trigger", "trigger"),
        ("poll", "auto", "auto"), ("auto", "wal", "wal"),
    ],
)  # fmt: skip
def test_a_tables_own_setting_counts_before_that_of_its_group(group: str, table: str | None, capture: str) -> None:
    config = Config(
        source={"dsn": "postgresql://u@h/d"}, groups=[{"name": "g", "capture": group}],
        tables={"public.orders": {"capture": table} if table else {}},
    )  # fmt: skip
    chosen = config.groups[0].model_copy(update={"capture": "wal"})
    assert config.capture_of(chosen, config.tables["public.orders"]) == capture
