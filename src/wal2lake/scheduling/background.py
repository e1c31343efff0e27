"""What a group's loop has done beside it, because it may wait for a disk or a server: one at a time of each kind.

The work runs on threads of its own; what follows from it is done by the loop, when it calls `finish`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ..errors import advise

log = logging.getLogger(__name__)
T = TypeVar("T")

_THREADS = 3


class BackgroundTasks:
    def __init__(self, name: str, done: Callable[[], object]) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"chores-{name}")
        self._done = done
        self._closed = False
        self._under_way: dict[str, tuple[Future[Any], Callable[[Any], object]]] = {}

    def begin(self, what: str, work: Callable[[], T], then: Callable[[T], object] = lambda _: None) -> bool:
        """Have some work done, unless the same is under way already or all is ending; whether it was begun."""
        if self._closed or what in self._under_way:
            return False
        future = self._pool.submit(work)
        self._under_way[what] = (future, then)
        future.add_done_callback(lambda _: self._done())
        return True

    def finish(self, ending: bool = False) -> None:
        """Do what follows from work that has ended; work that failed is told of, and asked for again some time.

        `ending`: what fails now was cut off, and nobody need be told.
        """
        if not self._under_way:
            return
        for what in [what for what, (future, _) in self._under_way.items() if future.done()]:
            future, then = self._under_way.pop(what)
            try:
                then(future.result())
            except Exception as error:
                # Whatever it is, it ends this piece of work and nothing else.
                log.log(
                    logging.DEBUG if ending else logging.WARNING,
                    "%s did not succeed: %s", what, advise(error).message,
                )  # fmt: skip
                log.debug("the cause", exc_info=error)

    def close(self) -> None:
        """Wait for what is under way; nothing follows from it any more but `finish`."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=False)
