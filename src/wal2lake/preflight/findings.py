"""What a check finds, and the facts that it judges: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    BLOCKS = "blocks"
    """a run can't do its work"""
    WARNS = "warns"
    """a run works, but not as one might expect"""
    NOTES = "notes"
    """good to know"""


@dataclass(frozen=True)
class Finding:
    object: str
    level: Level
    consequence: str
    fix: str = ""
    sql: bool = False
    """whether the fix is SQL that destroys nothing: `check --sql` prints it"""

    @property
    def blocks(self) -> bool:
        return self.level is Level.BLOCKS

    def to_json(self) -> dict[str, str | bool]:
        return {
            "object": self.object, "level": self.level.value, "consequence": self.consequence, "fix": self.fix,
            "sql": self.sql,
        }  # fmt: skip


@dataclass(frozen=True)
class GroupSlot:
    """The replication slot of a group, as it is."""

    group: str
    slot: str
    exists: bool = False
    usable: bool = True
    """decodes with our plugin, in this database"""
    lost: str | None = None
    """why the server gave it up"""
    holder: str | None = None
    """application name of who reads it"""
    continued: bool | None = None
    """whether the lake's change log continues from it; None: there is no change log"""


@dataclass(frozen=True)
class JavaFacts:
    path: str | None
    major: int | None


@dataclass(frozen=True)
class LakeFacts:
    path: str
    problem: str | None
    """why it can't be written"""
    free_bytes: int
