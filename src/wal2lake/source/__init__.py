"""PostgreSQL: connections, the catalog, publications, slots and the replication stream."""

from .connect import Connection, ServerFacts, alive, connect, jdbc, mark, server_facts, wal_end
from .model import CopySource, ExportedSnapshot, Heap

__all__ = [
    "Connection",
    "CopySource",
    "ExportedSnapshot",
    "Heap",
    "ServerFacts",
    "alive",
    "connect",
    "jdbc",
    "mark",
    "server_facts",
    "wal_end",
]
