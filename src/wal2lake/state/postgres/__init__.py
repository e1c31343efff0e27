"""The state store, leases and listeners in PostgreSQL."""

from .store import PostgresStateStore, logged_in

__all__ = ["PostgresStateStore", "logged_in"]
