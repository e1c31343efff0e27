"""Sessions with PostgreSQL: how they are opened, what they set, how long they wait for others."""

from .connect import alive, bounded, connection_failed, ordinary_session, parameters, place
from .locking import Patience
from .session import SET_FOR_COPY

__all__ = [
    "SET_FOR_COPY",
    "Patience",
    "alive",
    "bounded",
    "connection_failed",
    "ordinary_session",
    "parameters",
    "place",
]
