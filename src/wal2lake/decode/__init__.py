"""From pgoutput's bytes to typed Arrow columns. No I/O happens here."""

from .binary import readable
from .columns import batch_schema
from .intake import SLICE_BYTES, Intake, slice_bytes, slices
from .messages import Messages
from .model import Cut, DecodedTable, Refusals, Relation, RelationColumn, Resolver, Target, TextNeeded
from .pgoutput import Decoder
from .spans import picked
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
    "TextNeeded",
    "Undecoded",
    "batch_schema",
    "picked",
    "plain",
    "readable",
    "slice_bytes",
    "slices",
]
