"""The state store: what is wanted, and a cache of states and errors for people to query."""

from .lease import GroupLease, Listener
from .records import GroupRecord, GroupWish, HistoryEntry, TableRecord, TableWish
from .store import StateStore, logged_in

__all__ = [
    "GroupLease", "GroupRecord", "GroupWish", "HistoryEntry", "Listener", "StateStore", "TableRecord", "TableWish",
    "logged_in",
]  # fmt: skip
