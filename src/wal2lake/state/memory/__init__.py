"""The state store, leases and listeners in memory, for tests and simulations: several "processes" in one process.

state = MemoryState()
first, second = state.connect(), state.connect()
first.create()
first.lease("default").take()
second.lease("default").take()      # raises GroupHeld
state.end_sessions(first.process)   # as if its process had been killed
"""

from .server import Call, Changes, Hook
from .store import MemoryState, MemoryStateStore

__all__ = ["Call", "Changes", "Hook", "MemoryState", "MemoryStateStore"]
