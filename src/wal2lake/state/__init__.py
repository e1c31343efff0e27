"""The state store: what is wanted, and a cache of states and errors for people to query."""

from .lease import GroupLease, Listener
from .records import GroupRecord, GroupSpec, HistoryEntry, TableRecord, TableSpec
from .store import StateStore, logged_in

__all__ = [
    "GroupLease", "GroupRecord", "GroupSpec", "HistoryEntry", "Listener", "StateStore", "TableRecord", "TableSpec",
    "logged_in",
]  # fmt: skip
