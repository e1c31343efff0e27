"""Judgement of a group that chose its capture mode. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ..reconcile import Choice
from .findings import Finding, Severity


def judge_choice(choice: Choice) -> Iterator[Finding]:
    """What a group that chose triggers waits for."""
    if not (choice.chosen and choice.group.triggers):
        return
    name = f"group {choice.group.name}"
    if choice.obstacles:
        yield Finding(
            name, Severity.NOTES, f"is captured by triggers while the WAL can't be read: {'; '.join(choice.obstacles)}",
            'No action needed; to capture from the WAL, set capture = "wal" in the group, and check names what to do',
        )  # fmt: skip
    else:
        yield Finding(
            name, Severity.NOTES,
            "is captured by triggers, and changes to the WAL by itself; tables without a replica identity keep theirs",
            "No action needed",
        )  # fmt: skip
