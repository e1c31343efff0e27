"""When a table is committed: by its own interval, and with what is new when a worker comes free.

Manifests come once in the flush interval. While all workers are busy, a table that waits for one would begin with what
was new up to that long ago; so the capture is asked to publish what is complete when a worker is free for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from typing import Protocol

from ..config import GroupConfig, TableConfig, settings_of
from ..schema import TableSchema

FRESH_SHARE = 0.25
"""what was published no longer ago than this share of the flush interval is new still"""
ANSWER_SECONDS = 0.2
"""how long the capture may take for it, before work begins with what is there; usually it is a quarter of that"""


class Waits(Protocol):
    """What waits for a table."""

    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True)
class Cadence:
    """How often a table is committed that has settings of its own: less often than its group's manifests come."""

    group: GroupConfig
    tables: Mapping[str, TableConfig]

    def due(self, table: TableSchema, committed: datetime | None, waiting: Waits, now: datetime) -> bool:
        """Whether what waits for a table is to be committed now: enough time has passed, or it is enough."""
        own = settings_of(self.tables, table.id, table.settings_from)
        if own.flush_interval is None or committed is None:
            return True
        if now - committed >= timedelta(seconds=own.flush_interval):
            return True
        most = self.group.flush_bytes if own.flush_bytes is None else own.flush_bytes
        return waiting.bytes >= most


class Freshness:
    """A worker that comes free begins with what is new then, and not with what the last manifest had."""

    def __init__(self, flush_interval: float, request_flush: Callable[[], object]) -> None:
        """`request_flush`: have the capture publish what is complete. It counts its answers; a manifest is one, too."""
        self._interval, self._fresh, self._request_flush = flush_interval, FRESH_SHARE * flush_interval, request_flush
        self._fresh_until = self._asked_last = -inf
        self._asked: tuple[float, tuple[int, int]] | None = None

    def given(self, manifest: int, read_at: float, answers: int) -> bool:
        """Whether work may begin: the last manifest is new, or the capture has answered, or takes too long for it.

        `manifest` was read at `read_at`; so many times the capture has answered that all is published.
        """
        now = monotonic()
        if now < max(self._fresh_until, read_at + self._fresh):
            self._asked = None
            return True
        if self._asked is None:
            self._asked, self._asked_last = (now, (manifest, answers)), now
            self._request_flush()
            return False
        asked_at, known = self._asked
        if (manifest, answers) == known and now - asked_at < ANSWER_SECONDS:
            return False
        self._asked, self._fresh_until = None, now + self._fresh
        return True

    @property
    def awaited(self) -> float | None:
        """How much longer an answer may take that was asked for."""
        left = self._asked[0] + ANSWER_SECONDS - monotonic() if self._asked is not None else 0.0
        return left if left > 0 else None

    def too_soon(self, began: float) -> bool:
        """Whether a table whose last work began then is to wait, though something has arrived for it.

        What came ahead of time was for another table: none is committed more often for that.
        """
        now = monotonic()
        return now - self._asked_last < self._interval and now - began < self._interval - ANSWER_SECONDS
