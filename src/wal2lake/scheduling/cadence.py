"""When a table is committed: by its own interval, and with fresh changes when a worker becomes free.

Manifests come once per flush interval. A table that waited for a busy worker would begin with changes that are up to
that old, so capture is asked for a flush when a worker is free for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Protocol

from ..clock import Clock
from ..config import GroupConfig, TableConfig, settings_of
from ..schema import TableSchema

FRESH_SHARE = 0.25
"""share of the flush interval up to which the last manifest counts as fresh"""
ANSWER_SECONDS = 0.2
"""limit for capture to answer, after which work begins with what is there; usually it takes a quarter of that"""


class Waits(Protocol):
    """The changes that wait for a table."""

    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True)
class Cadence:
    """Commit intervals of tables with their own settings: less often than their group's manifests."""

    group: GroupConfig
    tables: Mapping[str, TableConfig]

    def due(self, table: TableSchema, committed: datetime | None, waiting: Waits, now: datetime) -> bool:
        """Whether to commit waiting changes: enough time has passed, or there are enough of them."""
        own = settings_of(self.tables, table.id, table.settings_from)
        if own.flush_interval is None or committed is None:
            return True
        if now - committed >= timedelta(seconds=own.flush_interval):
            return True
        most = self.group.flush_bytes if own.flush_bytes is None else own.flush_bytes
        return waiting.bytes >= most


class Freshness:
    """Makes a worker that becomes free begin with fresh changes instead of those of the last manifest."""

    def __init__(self, flush_interval: float, request_flush: Callable[[], object], clock: Clock) -> None:
        """`request_flush`: ask capture for a flush. It counts its answers; a manifest is an answer, too."""
        self._clock = clock
        self._interval, self._fresh, self._request_flush = flush_interval, FRESH_SHARE * flush_interval, request_flush
        self._fresh_until = self._last_request = -inf
        self._requested: tuple[float, tuple[int, int]] | None = None

    def may_begin(self, manifest: int, read_at: float, answers: int) -> bool:
        """Whether work may begin: the last manifest is fresh, or capture has answered, or takes too long.

        `manifest` was read at `read_at`; `answers` is the number of flushes that capture has reported as done.
        """
        now = self._clock.monotonic()
        if now < max(self._fresh_until, read_at + self._fresh):
            self._requested = None
            return True
        if self._requested is None:
            self._requested, self._last_request = (now, (manifest, answers)), now
            self._request_flush()
            return False
        requested_at, known = self._requested
        if (manifest, answers) == known and now - requested_at < ANSWER_SECONDS:
            return False
        self._requested, self._fresh_until = None, now + self._fresh
        return True

    @property
    def awaited(self) -> float | None:
        """Seconds until the limit of an answer that was requested."""
        left = self._requested[0] + ANSWER_SECONDS - self._clock.monotonic() if self._requested is not None else 0.0
        return left if left > 0 else None

    def too_soon(self, began: float) -> bool:
        """Whether a table whose last work began at `began` must wait although changes have arrived for it.

        A flush that another table requested must not make this one commit more often.
        """
        now = self._clock.monotonic()
        return now - self._last_request < self._interval and now - began < self._interval - ANSWER_SECONDS
