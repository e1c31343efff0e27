"""The demo, and the throw-away PostgreSQL server that it shares with the tests."""

from .run import run_demo

__all__ = ["run_demo"]
