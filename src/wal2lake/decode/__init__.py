"""From pgoutput's bytes to typed Arrow columns. No I/O happens here."""

from .intake import Intake, slices
from .messages import Messages
from .model import Cut, DecodedTable, Relation, RelationColumn, Resolver, Target
from .pgoutput import SLICE_BYTES, Decoder
from .streamed import Demultiplexer, Streamed, plain

__all__ = [
    "SLICE_BYTES",
    "Cut",
    "DecodedTable",
    "Decoder",
    "Demultiplexer",
    "Intake",
    "Messages",
    "Relation",
    "RelationColumn",
    "Resolver",
    "Streamed",
    "Target",
    "plain",
    "slices",
]
