"""A clean stop: SIGTERM and Ctrl-C set an event that the work checks; a second Ctrl-C ends the process at once.

The work runs on a thread of its own and the main thread only waits, so that signals are handled at once and libraries
that install signal handlers where they can (Spark, for SIGINT) can't replace ours.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

EXIT_AT_ONCE = 130
LIMIT_SECONDS = 9.0
_LOOK_SECONDS = 0.2
_CUT_OFF = b"a server does not answer, so the process ends without waiting for it; the next run continues from here\n"
_STOPPING = b"stopping; press Ctrl-C again to end at once\n"


def until_stopped(work: Callable[[threading.Event], T], exit_code: int | None = None) -> T:
    """Run `work` until it returns, which it does soon after its event is set.

    With `exit_code`, the process exits with this code if that takes too long, for example because a server does not
    answer. This is safe: everything that a run does may be interrupted at any moment.
    """
    stop = threading.Event()
    result: Future[T] = Future()

    def body() -> None:
        try:
            result.set_result(work(stop))
        except BaseException as error:
            result.set_exception(error)

    with _signals_set(stop):
        threading.Thread(target=body, name="wal2lake", daemon=True).start()
        if exit_code is not None:
            _wait_for(result, stop, exit_code)
        return result.result()


def _wait_for(result: Future[T], stop: threading.Event, exit_code: int) -> None:
    while not wait([result], _LOOK_SECONDS).done:
        if stop.is_set() and not wait([result], LIMIT_SECONDS).done:
            os.write(2, _CUT_OFF)
            os._exit(exit_code)


@contextmanager
def _signals_set(stop: threading.Event) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.is_set() and number == signal.SIGINT:
            os._exit(EXIT_AT_ONCE)
        if not stop.is_set():
            stop.set()
            # A handler may interrupt a print, so it writes to the descriptor itself.
            os.write(2, _STOPPING)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
