"""How code that works on a scripted server waits, and what time it is: simulated, or that of the machine."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wal2lake.clock import SYSTEM_CLOCK, Clock


def _readable(wake: Sequence[int], timeout: float) -> bool:
    return bool(select.select(wake, [], [], timeout)[0])


@dataclass(frozen=True)
class Waits:
    clock: Clock = SYSTEM_CLOCK
    readable: Callable[[Sequence[int], float], bool] = _readable
    """whether one of some descriptors is readable within so many seconds"""
    sleep: Callable[[float], object] = time.sleep
    opened: Callable[[Callable[[], object]], object] = lambda close: None
    """told of what ends with the process that works"""
    hooked: Callable[[Any, Sequence[str]], Any] = lambda target, plain: target
    """a session with what is to happen around its calls, but for its plain ones"""


REAL = Waits()
