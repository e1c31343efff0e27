"""From pgoutput's bytes to typed Arrow columns. No I/O happens here."""

from .binary import readable
from .columns import batch_schema
from .intake import SLICE_BYTES, Intake, slice_bytes, slices
from .messages import Messages
from .model import Cut, DecodedTable, Refusals, Relation, RelationColumn, Resolver, Target, TextNeeded
from .pgoutput import Decoder
from .spans import picked
from .undecoded import Undecoded

__all__ = [
    "SLICE_BYTES",
    "Cut",
    "DecodedTable",
    "Decoder",
    "Intake",
    "Messages",
    "Refusals",
    "Relation",
    "RelationColumn",
    "Resolver",
    "Target",
    "TextNeeded",
    "Undecoded",
    "batch_schema",
    "picked",
    "readable",
    "slice_bytes",
    "slices",
]
