"""The demo, and the temporary PostgreSQL server that the tests use, too."""

from .run import run_demo

__all__ = ["run_demo"]
