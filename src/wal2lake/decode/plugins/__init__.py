"""Output plugins other than pgoutput: their messages, and how they become pgoutput's. No I/O happens here."""

from .facts import ColumnFact, Reading, RelationFacts, SlotMark
from .plugin import plugin_options
from .told import TableName
from .translator import Translator

__all__ = [
    "ColumnFact",
    "Reading",
    "RelationFacts",
    "SlotMark",
    "TableName",
    "Translator",
    "plugin_options",
]
