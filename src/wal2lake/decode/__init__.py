"""From pgoutput's bytes to typed Arrow columns. No I/O happens here."""

from .model import Cut, DecodedTable, Relation, RelationColumn, Resolver, Target
from .pgoutput import Decoder

__all__ = ["Cut", "DecodedTable", "Decoder", "Relation", "RelationColumn", "Resolver", "Target"]
