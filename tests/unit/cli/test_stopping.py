"""Signals: the first stops cleanly, a second Ctrl-C ends at once. Each case is a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from wal2lake.cli.stopping import EXIT_AT_ONCE, until_stopped

OBEDIENT = """
from wal2lake.cli.stopping import until_stopped
def work(stop):
    print("ready", flush=True)
    stop.wait()
    print("tidied up", flush=True)
until_stopped(work)
"""
STUBBORN = """
import threading
from wal2lake.cli.stopping import until_stopped
def work(stop):
    print("ready", flush=True)
    stop.wait()
    print("stopping", flush=True)
    threading.Event().wait()
until_stopped(work)
"""


def start(code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_work_end_and_the_exit_code_is_0(number: signal.Signals) -> None:
    process = start(OBEDIENT)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "tidied up\n", "stopping; press Ctrl-C again to end at once\n")


def test_a_second_ctrl_c_ends_at_once_with_130() -> None:
    process = start(STUBBORN)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == EXIT_AT_ONCE


def test_a_second_sigterm_waits_for_the_clean_stop() -> None:
    process = start(STUBBORN)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == EXIT_AT_ONCE


def test_the_result_and_the_error_of_the_work_come_back() -> None:
    def fail(stop: threading.Event) -> None:
        raise LookupError("gone")

    assert until_stopped(lambda stop: stop.is_set()) is False
    with pytest.raises(LookupError, match="gone"):
        until_stopped(fail)


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    until_stopped(lambda stop: None)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
