"""From pgoutput messages to typed Arrow columns. Pure: no I/O."""

from .binding import readable
from .columns import batch_schema
from .intake import SLICE_BYTES, Intake, slice_bytes, slices
from .messages import (
    BEGIN,
    COMMIT,
    KIND_AT,
    RELATION,
    STREAM_ABORT,
    STREAM_COMMIT,
    STREAM_EPOCH_US,
    STREAM_START,
    STREAM_STOP,
    Commit,
    Messages,
    among,
    parse_commit,
    picked,
)
from .model import Boundary, DecodedTable, Refusals, Relation, RelationColumn, ResolveRelation, Target, TextNeeded
from .pgoutput import Decoder
from .plugins import (
    ColumnFact,
    Reading,
    RelationFacts,
    SlotMark,
    TableName,
    Translator,
    plugin_options,
)
from .protocol import refused as refused_change
from .undecoded import Undecoded

__all__ = [
    "BEGIN",
    "COMMIT",
    "KIND_AT",
    "RELATION",
    "SLICE_BYTES",
    "STREAM_ABORT",
    "STREAM_COMMIT",
    "STREAM_EPOCH_US",
    "STREAM_START",
    "STREAM_STOP",
    "Boundary",
    "ColumnFact",
    "Commit",
    "DecodedTable",
    "Decoder",
    "Intake",
    "Messages",
    "Reading",
    "Refusals",
    "Relation",
    "RelationColumn",
    "RelationFacts",
    "ResolveRelation",
    "SlotMark",
    "TableName",
    "Target",
    "TextNeeded",
    "Translator",
    "Undecoded",
    "among",
    "batch_schema",
    "parse_commit",
    "picked",
    "plugin_options",
    "readable",
    "refused_change",
    "slice_bytes",
    "slices",
]
