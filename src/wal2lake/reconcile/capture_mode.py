"""The capture mode that a group with `capture = "auto"` begins with: the WAL where that is possible, else triggers.

the change log says triggers ─► triggers, until the group has crossed over
its slot is there ─► the WAL
otherwise ─► the WAL if nothing blocks it, or if triggers could not be installed either; else triggers
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..changelog import ChangeLog
from ..config import GroupConfig
from ..errors import Wal2LakeError
from ..source import SourceDatabase

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """How the changes of a group are captured."""

    group: GroupConfig
    """with a capture mode that is not "auto" """
    obstacles: tuple[str, ...] = ()
    """to the WAL"""
    chosen: bool = False
    """whether the mode was chosen, and may change"""


def choose(group: GroupConfig, changelog: ChangeLog, source: SourceDatabase) -> Choice:
    """`source`: that of the group. A source that can't be asked means the WAL: whoever starts the group meets it."""
    if group.capture != "auto":
        return Choice(group)
    try:
        triggers, obstacles = _judge(group, changelog, source)
    except Wal2LakeError as error:
        log.debug("group %s: the capture mode could not be chosen: %s", group.name, error)
        triggers, obstacles = False, ()
    return Choice(group.model_copy(update={"capture": "trigger" if triggers else "wal"}), obstacles, chosen=True)


def _judge(group: GroupConfig, changelog: ChangeLog, source: SourceDatabase) -> tuple[bool, tuple[str, ...]]:
    if group.leafwise:
        return False, ()
    if changelog.by_triggers:
        return True, source.wal_obstacles()
    if changelog.started and (slot := source.slot()) is not None and slot.lost is None:
        return False, ()
    obstacles = source.wal_obstacles()
    return bool(obstacles) and source.may_install_triggers(), obstacles
