"""The state store: desired state, and a cache of states and errors that people can query.

Callers use the ports; `open_store` returns the configured implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import Lease, Listener, StateStore
from .records import GroupRecord, GroupSpec, HistoryEntry, TableRecord, TableSpec, identity_entries

if TYPE_CHECKING:
    from ..config import Config
    from ..installation import Installation

__all__ = [
    "GroupRecord", "GroupSpec", "HistoryEntry", "Lease", "Listener", "StateStore", "TableRecord", "TableSpec",
    "identity_entries", "open_store",
]  # fmt: skip


def open_store(config: Config, installation: Installation | None) -> StateStore:
    """The state store of a configuration, for an installation; None: for any. Connects on first use."""
    from .postgres import PostgresStateStore

    dsn = (config.state.dsn or config.source.dsn).get_secret_value()
    pooler = config.state.pooler if config.state.dsn is not None else config.source.pooler
    return PostgresStateStore(dsn, config.source.connect_timeout, installation, pooler=pooler)
