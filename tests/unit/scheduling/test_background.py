"""Background tasks: one of a kind at a time, and results are handled by the loop."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest

from waiting import wait_until
from wal2lake.errors import ConnectionFailed
from wal2lake.executor import SYSTEM_EXECUTOR
from wal2lake.scheduling.background import BackgroundTasks

PATIENCE = 5.0


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def background(woken: threading.Event) -> Iterator[BackgroundTasks]:
    made = BackgroundTasks("g", woken.set, SYSTEM_EXECUTOR)
    yield made
    made.close()


def test_the_same_work_is_not_begun_twice(background: BackgroundTasks, woken: threading.Event) -> None:
    hold = threading.Event()
    results: list[bool] = []
    assert background.begin("looking", lambda: hold.wait(PATIENCE), results.append)
    assert not background.begin("looking", lambda: True, results.append)
    assert background.begin("something else", lambda: None)
    hold.set()
    wait_until(lambda: background.finish() or results, PATIENCE, lambda: results)  # type: ignore[func-returns-value]
    assert results == [True]
    assert background.begin("looking", lambda: True)


def test_what_follows_happens_when_the_loop_asks(background: BackgroundTasks, woken: threading.Event) -> None:
    results: list[threading.Thread] = []
    background.begin("looking", lambda: None, lambda _: results.append(threading.current_thread()))
    assert woken.wait(PATIENCE)
    assert results == []
    background.finish()
    assert results == [threading.current_thread()]


def test_work_that_fails_is_logged_and_other_work_may_be_started(
    background: BackgroundTasks, woken: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ConnectionFailed(server="the source", cause="gone")

    background.begin("looking", fail)
    assert woken.wait(PATIENCE)
    background.finish()
    assert "looking did not succeed" in caplog.text
    assert not background.begin("looking", lambda: None), "it failed just now"
    assert background.begin("something else", lambda: None)


def test_any_error_of_a_piece_of_work_ends_that_work_alone(
    background: BackgroundTasks, woken: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/lake/stored.json")

    background.begin("writing", fail)
    assert woken.wait(PATIENCE)
    background.finish()
    assert "writing did not succeed: cannot write to the lake" in caplog.text
