"""Background tasks of a group's loop, for work that may wait for a disk or a server: one at a time of each kind.

The work runs on threads of its own; the loop handles the results when it calls `finish`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import advise
from ..executor import Executor, Future
from ..retry import BACKGROUND

log = logging.getLogger(__name__)
T = TypeVar("T")

_THREADS = 3


class BackgroundTasks:
    def __init__(self, name: str, done: Callable[[], object], executor: Executor) -> None:
        self._pool = executor.pool(f"background-{name}", _THREADS)
        self._done, self._clock = done, executor.clock
        self._closed = False
        self._failed: dict[str, tuple[int, float]] = {}
        """kinds that failed: how often in a row, and when they may be started again"""
        self._under_way: dict[str, tuple[Future[Any], Callable[[Any], object]]] = {}

    def begin(self, what: str, work: Callable[[], T], then: Callable[[T], object] = lambda _: None) -> bool:
        """Start some work, unless the same is running or failed a moment ago, or the group is ending.

        Returns whether it was started. The loop may ask for it in each turn, and a failure causes a turn.
        """
        if self._closed or what in self._under_way or self._clock.monotonic() < self._failed.get(what, (0, 0.0))[1]:
            return False
        future = self._pool.submit(work)
        self._under_way[what] = (future, then)
        future.add_done_callback(lambda _: self._done())
        return True

    def finish(self, ending: bool = False) -> None:
        """Handle results of work that has ended; failures are logged, and the work is started again some time later.

        `ending`: failures are consequences of the stop and are not logged as warnings.
        """
        if not self._under_way:
            return
        for what in [what for what, (future, _) in self._under_way.items() if future.done()]:
            future, then = self._under_way.pop(what)
            try:
                then(future.result())
                self._failed.pop(what, None)
            except Exception as error:
                # Any exception ends this piece of work only.
                failures = self._failed.get(what, (0, 0.0))[0] + 1
                self._failed[what] = failures, self._clock.monotonic() + BACKGROUND.after(failures)
                log.log(
                    logging.DEBUG if ending else logging.WARNING,
                    "%s did not succeed: %s", what, advise(error).message,
                )  # fmt: skip
                log.debug("the cause", exc_info=error)

    def close(self) -> None:
        """Wait for running work; only `finish` may be called afterwards."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=False)
