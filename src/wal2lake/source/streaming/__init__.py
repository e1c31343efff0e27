"""The replication stream."""

from .stream import ReplicationStream, StreamTimeouts
from .translated import open_stream

__all__ = [
    "ReplicationStream",
    "StreamTimeouts",
    "open_stream",
]
