"""From pgoutput's bytes to typed Arrow columns. No I/O happens here."""

from .columns import batch_schema
from .intake import Intake, slices
from .messages import Messages
from .model import Cut, DecodedTable, Refusals, Relation, RelationColumn, Resolver, Target
from .pgoutput import SLICE_BYTES, Decoder
from .streamed import Demultiplexer, Streamed, plain
from .undecoded import Undecoded

__all__ = [
    "SLICE_BYTES",
    "Cut",
    "DecodedTable",
    "Decoder",
    "Demultiplexer",
    "Intake",
    "Messages",
    "Refusals",
    "Relation",
    "RelationColumn",
    "Resolver",
    "Streamed",
    "Target",
    "Undecoded",
    "batch_schema",
    "plain",
    "slices",
]
