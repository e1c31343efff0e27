"""What people are shown: status, progress of copies, changes as they come."""

from .event_query import EventQuery, EventReader, chosen
from .progress import Progress, Silent
from .status import (
    GroupFacts,
    GroupStatus,
    Status,
    TableStatus,
    status_of,
    table_status,
)
from .tail import Change, captured_changes

__all__ = [
    "Change",
    "EventQuery",
    "EventReader",
    "GroupFacts",
    "GroupStatus",
    "Progress",
    "Silent",
    "Status",
    "TableStatus",
    "captured_changes",
    "chosen",
    "status_of",
    "table_status",
]
