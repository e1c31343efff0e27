"""Judgements of tables that are captured by triggers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..quoting import toml
from ..schema import TableId
from ..source.triggers import Condition, Lacking
from .findings import Finding, Severity


def judge_triggers(table: TableId, condition: Condition | None, obstacle: str | None) -> Iterator[Finding]:
    """A table that is captured by triggers. `condition`: of those that it has; None before the first run."""
    if obstacle is not None:
        yield Finding(
            str(table), Severity.BLOCKS, f"can't be captured by triggers: {obstacle}",
            f'set capture = "wal" in its group, or exclude = [{toml(str(table))}]',
        )  # fmt: skip
    elif condition is None:
        yield Finding(
            str(table), Severity.NOTES, "gets statement-level triggers, which write changes to a buffer table",
            "No action needed",
        )  # fmt: skip
    elif condition is Condition.OUTDATED:
        yield Finding(
            str(table), Severity.NOTES, "was altered, or its triggers are outdated: the next run replaces them",
            "No action needed",
        )  # fmt: skip
    elif condition is Condition.INSTALLED:
        yield Finding(str(table), Severity.NOTES, "is captured by triggers, which are installed")
    else:
        yield Finding(
            str(table), Severity.WARNS, f"has triggers that are {condition}: changes are not captured, so the next run "
            "installs them and re-copies the table", "No action needed",
        )  # fmt: skip


def judge_rights(lacking: Iterable[Lacking], instead: bool = False) -> Iterator[Finding]:
    """What the role lacks to install triggers that always fire, or to keep their buffers.

    `instead`: the WAL can't be read, and the group would be captured by triggers.
    """
    level = Severity.NOTES if instead else Severity.BLOCKS
    for one in lacking:
        rest = "; so its group can't be captured by triggers while the WAL can't be read" if instead else ""
        yield Finding(one.object, level, one.consequence + rest, one.fix, sql=one.sql)
