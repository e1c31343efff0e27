"""A clean stop: SIGTERM and Ctrl-C set an event that the work looks at; a second Ctrl-C ends the process at once.

The work runs on a thread of its own. The main thread only waits, so a signal is handled at once, and nothing that the
work starts (Spark sets a handler for SIGINT where it can) takes the signals away from here.
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
_CUT_OFF = b"something does not answer, and is not waited for any longer; the next run goes on from here\n"
_STOPPING = b"stopping; Ctrl-C again ends at once\n"


def until_stopped(work: Callable[[threading.Event], T], exit_code: int | None = None) -> T:
    """Run `work` until it returns, which it does soon after the event it was given is set.

    With `exit_code`, the process ends with it where that takes too long (a server that is not there any more can't be
    waited for in another way): what a run does may be cut off at any moment.
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
            # A handler may interrupt a print that is under way, so it writes to the descriptor itself.
            os.write(2, _STOPPING)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
