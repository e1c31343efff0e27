"""Findings of a check, and the facts that it judges: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    BLOCKS = "blocks"
    """a run can't work"""
    WARNS = "warns"
    """a run works, with a consequence that may not be expected"""
    NOTES = "notes"
    """for information"""


@dataclass(frozen=True)
class Finding:
    object: str
    level: Severity
    consequence: str
    fix: str = ""
    sql: bool = False
    """whether the fix is SQL that destroys nothing: `check --sql` prints it"""
    in_script: bool | None = None
    """whether `check --sql` prints the fix; None: if it blocks"""

    @property
    def blocks(self) -> bool:
        return self.level is Severity.BLOCKS

    def to_json(self) -> dict[str, str | bool]:
        return {
            "object": self.object, "level": self.level.value, "consequence": self.consequence, "fix": self.fix,
            "sql": self.sql,
        }  # fmt: skip


@dataclass(frozen=True)
class GroupSlot:
    """The replication slot of a group."""

    group: str
    slot: str
    exists: bool = False
    usable: bool = True
    """uses our output plugin, in this database"""
    lost: str | None = None
    """why the server invalidated it"""
    holder: str | None = None
    """application name of the session that reads it"""
    continued: bool | None = None
    """whether the change log was read from it; None: there is no change log"""
    polled: bool = False
    """it is read through SQL, which needs no walsender, and copies no slot of their own"""
    refused: str | None = None
    """why the server refuses replication connections, where the group needs them"""


@dataclass(frozen=True)
class LakeFacts:
    path: str
    problem: str | None
    """why it can't be written"""
    free_bytes: int
