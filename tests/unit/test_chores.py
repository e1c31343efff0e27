"""Work beside the loop: one of a kind at a time, and what follows from it is the loop's."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest

from waiting import wait_until
from wal2lake.control.chores import Chores
from wal2lake.errors import ConnectionFailed

PATIENCE = 5.0


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def chores(woken: threading.Event) -> Iterator[Chores]:
    made = Chores("g", woken.set)
    yield made
    made.close()


def test_the_same_work_is_not_begun_twice(chores: Chores, woken: threading.Event) -> None:
    hold = threading.Event()
    results: list[bool] = []
    assert chores.begin("looking", lambda: hold.wait(PATIENCE), results.append)
    assert not chores.begin("looking", lambda: True, results.append)
    assert chores.begin("something else", lambda: None)
    hold.set()
    wait_until(lambda: chores.finish() or results, PATIENCE, lambda: results)  # type: ignore[func-returns-value]
    assert results == [True]
    assert chores.begin("looking", lambda: True)


def test_what_follows_happens_when_the_loop_asks(chores: Chores, woken: threading.Event) -> None:
    results: list[threading.Thread] = []
    chores.begin("looking", lambda: None, lambda _: results.append(threading.current_thread()))
    assert woken.wait(PATIENCE)
    assert results == []
    chores.finish()
    assert results == [threading.current_thread()]


def test_work_that_fails_is_told_of_and_may_be_begun_again(
    chores: Chores, woken: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ConnectionFailed(server="the source", cause="gone")

    chores.begin("looking", fail)
    assert woken.wait(PATIENCE)
    chores.finish()
    assert "looking did not succeed" in caplog.text
    assert chores.begin("looking", lambda: None)


def test_any_error_of_a_piece_of_work_ends_that_work_alone(
    chores: Chores, woken: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/lake/stored.json")

    chores.begin("writing", fail)
    assert woken.wait(PATIENCE)
    chores.finish()
    assert "writing did not succeed: cannot write to the lake" in caplog.text
