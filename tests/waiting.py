"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SHORTEST, LONGEST, SHARE, REST = 0.02, 0.3, 0.1, 4
"""seconds between two looks: so large a share of the wait so far, and so many times what a look takes, within bounds;
looks are not to take the time of what is looked at"""

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float, message: str | Callable[[], object]) -> T:
    """Ask until the answer is true, and give it back; after `timeout` seconds fail and say what was seen.

    `message` says what was waited for; as a function, it is called at the end to describe the state of things.
    """
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        seen = condition()
        if seen:
            return seen
        now = time.monotonic()
        waited = now - began
        if waited >= timeout:
            text = message() if callable(message) else message
            raise AssertionError(f"not within {timeout:g} s: {text} (last seen: {seen!r})")
        time.sleep(min(LONGEST, max(SHORTEST, waited * SHARE, (now - looked) * REST)))
