"""The replication stream."""

from .crossing import CrossingStream
from .stream import ReplicationStream, StreamTimeouts
from .translated import open_stream

__all__ = [
    "CrossingStream",
    "ReplicationStream",
    "StreamTimeouts",
    "open_stream",
]
