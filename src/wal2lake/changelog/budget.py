"""The disk budget of a group's change log: how much is used, and whether capture has to wait.

The capture process adds the sizes of its manifests and of open transactions. The main process retires manifests,
oldest first, so a check of the oldest known one shows whether any are gone. Nothing is ever dropped to make room: a
full log makes capture wait, and the slot holds the WAL.
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
"""the warning ends below this"""
RESUME_SHARE = 0.95
RECHECK_SECONDS = 0.2
"""seconds between checks of the oldest manifest; also while capture waits"""


class FillLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FULL = "full"
    """capture waits until manifests are retired"""
    OVERSIZED = "oversized"
    """over the budget with nothing to retire: something that is larger than the whole budget is captured anyway"""


@dataclass(frozen=True)
class Usage:
    bytes: int = 0
    max_bytes: int = 0
    level: FillLevel = FillLevel.OK

    @property
    def paused(self) -> bool:
        return self.level is FillLevel.FULL

    @property
    def warning(self) -> str | None:
        """A message for people; None if there is enough room."""
        match self.level:
            case FillLevel.OK:
                return None
            case FillLevel.WARNING:
                return f"the change log takes {self._share} of its disk budget"
            case FillLevel.FULL:
                return f"the change log takes {self._share} of its disk budget: capture waits, the slot holds the WAL"
            case FillLevel.OVERSIZED:
                return (
                    f"the change log takes {self._share} of its disk budget, and nothing of it can be deleted:"
                    " capture continues; set [changelog] max_bytes higher"
                )

    @property
    def _share(self) -> str:
        return f"{self.bytes / self.max_bytes:.0%}"


def judge(before: FillLevel, used: int, most: int, waiting_helps: bool) -> FillLevel:
    """The level at a usage; it depends on the level before, so that it does not oscillate at a threshold."""
    if used >= most or (before is FillLevel.FULL and used >= RESUME_SHARE * most):
        return FillLevel.FULL if waiting_helps else FillLevel.OVERSIZED
    if used >= WARN_SHARE * most or (before is not FillLevel.OK and used >= CALM_SHARE * most):
        return FillLevel.WARNING
    return FillLevel.OK


class Budget:
    """Usage of one group's log in the capture process, starting with the manifests that exist."""

    def __init__(
        self, changelog: ChangeLog, max_bytes: int, group: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._group, self._clock = changelog, group, clock
        self._kept = deque(changelog.weights())
        self._bytes = sum(size for _, size in self._kept)
        self._looked_at = 0.0
        self._warned: set[FillLevel] = set()
        self.usage = Usage(0, max_bytes)

    def published(self, manifest: Manifest) -> None:
        self._kept.append((manifest.number, manifest.bytes))
        self._bytes += manifest.bytes

    def look(self, open_bytes: int) -> Usage:
        """The usage, including files of open transactions."""
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

    def _tell(self, before: FillLevel) -> None:
        usage = self.usage
        if usage.level is FillLevel.OK:
            self._warned.clear()
        if before is FillLevel.FULL and usage.level is not FillLevel.OVERSIZED:
            self._warned.discard(FillLevel.FULL)
            log.warning("group %s: there is room in the change log again: capture continues", self._group)
        elif usage.level not in self._warned and usage.level is not FillLevel.OK:
            serious = logging.ERROR if usage.level is FillLevel.OVERSIZED else logging.WARNING
            log.log(serious, "group %s: %s (%d of %d bytes)", self._group, usage.warning, usage.bytes, usage.max_bytes)
        self._warned.add(usage.level)
