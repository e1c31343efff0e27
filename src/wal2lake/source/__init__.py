"""PostgreSQL, as other packages see it: the protocols of a source, and what implements them.

The packages inside have names of their own; modules are used within this package alone.
"""

from .catalog_reader import PostgresCatalog
from .crossing_port import Crossed, Crossing
from .database import Source
from .model import (
    BLOCK_BYTES,
    CopySource,
    ExportedSnapshot,
    Heap,
    SourceIdentity,
    Standing,
    filtered,
)
from .ports import (
    Capabilities,
    CaptureSource,
    CatalogReader,
    ChangeSource,
    ControlSession,
    OpenSnapshot,
    SourceDatabase,
    StreamRequest,
)
from .sessions.connect import Connection, alive, connect, jdbc, replication_refused
from .sessions.server import ServerFacts, mark, server_facts, wal_end
from .trigger_source import TriggerSource, WholeRows, follow_columns

__all__ = [
    "BLOCK_BYTES",
    "Capabilities",
    "CaptureSource",
    "CatalogReader",
    "ChangeSource",
    "Connection",
    "ControlSession",
    "CopySource",
    "Crossed",
    "Crossing",
    "ExportedSnapshot",
    "Heap",
    "OpenSnapshot",
    "PostgresCatalog",
    "ServerFacts",
    "Source",
    "SourceDatabase",
    "SourceIdentity",
    "Standing",
    "StreamRequest",
    "TriggerSource",
    "WholeRows",
    "alive",
    "connect",
    "filtered",
    "follow_columns",
    "jdbc",
    "mark",
    "replication_refused",
    "server_facts",
    "wal_end",
]
