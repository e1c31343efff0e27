"""The disk that a group's change log may take: how full it is, and whether capture has to wait.

The capture process adds what it publishes and what its open transactions have on disk. The other process retires
manifests, oldest first, so one look at the oldest that is known tells whether any have gone. Nothing is ever dropped
for room: a full log makes capture wait, and the slot holds the WAL meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from .manifest import Manifest
from .store import ChangeLog

log = logging.getLogger(__name__)

WARN_SHARE = 0.8
CALM_SHARE = 0.7
"""a warning is over below this"""
RESUME_SHARE = 0.95
RECHECK_SECONDS = 0.2
"""how often the oldest manifest is looked for; capture that waits need not look more often"""


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FULL = "full"
    """capture waits until something is retired"""
    OVERSIZED = "oversized"
    """over the budget with nothing left to wait for: what is larger than that alone is taken all the same"""


@dataclass(frozen=True)
class Usage:
    bytes: int = 0
    max_bytes: int = 0
    level: Level = Level.OK

    @property
    def paused(self) -> bool:
        return self.level is Level.FULL

    @property
    def warning(self) -> str | None:
        """What is to be known of it, for people; None when all is well."""
        match self.level:
            case Level.OK:
                return None
            case Level.WARNING:
                return f"the change log takes {self._share} of its disk budget"
            case Level.FULL:
                return f"the change log takes {self._share} of its disk budget: capture waits, the slot holds the WAL"
            case Level.OVERSIZED:
                return (
                    f"the change log takes {self._share} of its disk budget, and nothing of it can be deleted:"
                    " capture goes on; set [changelog] max_bytes higher"
                )

    @property
    def _share(self) -> str:
        return f"{self.bytes / self.max_bytes:.0%}"


def judge(before: Level, used: int, most: int, waiting_helps: bool) -> Level:
    """The level at a usage; it depends on the one before, so that it does not waver around a threshold."""
    if used >= most or (before is Level.FULL and used >= RESUME_SHARE * most):
        return Level.FULL if waiting_helps else Level.OVERSIZED
    if used >= WARN_SHARE * most or (before is not Level.OK and used >= CALM_SHARE * most):
        return Level.WARNING
    return Level.OK


class Budget:
    """The capture process's books of one group's log, from the manifests that are there when it is made."""

    def __init__(
        self, changelog: ChangeLog, max_bytes: int, group: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._group, self._clock = changelog, group, clock
        self._kept = deque(changelog.weights())
        self._bytes = sum(size for _, size in self._kept)
        self._looked_at = 0.0
        self._told: set[Level] = set()
        self.usage = Usage(0, max_bytes)

    def published(self, manifest: Manifest) -> None:
        self._kept.append((manifest.number, manifest.bytes))
        self._bytes += manifest.bytes

    def look(self, open_bytes: int) -> Usage:
        """How full it is, with what transactions that have not committed have on disk."""
        now = self._clock()
        if now - self._looked_at >= RECHECK_SECONDS:
            self._looked_at = now
            self._let_go()
        before, used = self.usage, self._bytes + open_bytes
        level = judge(before.level, used, before.max_bytes, waiting_helps=len(self._kept) > 1)
        if used != before.bytes or level is not before.level:
            self.usage = Usage(used, before.max_bytes, level)
            if level is not before.level:
                self._tell(before.level)
        return self.usage

    def _let_go(self) -> None:
        # The last manifest is never retired: it is the log's position.
        while len(self._kept) > 1 and not self._log.has(self._kept[0][0]):
            self._bytes -= self._kept.popleft()[1]

    def _tell(self, before: Level) -> None:
        usage = self.usage
        if usage.level is Level.OK:
            self._told.clear()
        if before is Level.FULL and usage.level is not Level.OVERSIZED:
            self._told.discard(Level.FULL)
            log.warning("group %s: there is room in the change log again: capture goes on", self._group)
        elif usage.level not in self._told and usage.level is not Level.OK:
            serious = logging.ERROR if usage.level is Level.OVERSIZED else logging.WARNING
            log.log(serious, "group %s: %s (%d of %d bytes)", self._group, usage.warning, usage.bytes, usage.max_bytes)
        self._told.add(usage.level)
