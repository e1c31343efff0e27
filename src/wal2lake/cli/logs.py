"""Logging of the command line: one line per record of our own loggers, on stderr. The library configures no logging."""

from __future__ import annotations

import logging
import re

from rich.console import Console

FOREIGN = ("py4j", "pyspark", "psycopg")
"""loggers of libraries whose warnings are also raised as errors of wal2lake"""
_NOWHERE = logging.NullHandler()
_PASSWORD_IN_URL = re.compile(r"(://[^:/@\s]*:)[^@\s]+@")
_PASSWORD_PAIR = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """Remove passwords. Our own secrets never print, but a text of another library may quote a DSN."""
    return _PASSWORD_PAIR.sub(r"\1***", _PASSWORD_IN_URL.sub(r"\1***@", text))


class _ConsoleHandler(logging.Handler):
    """Writes through the console that draws the progress bars, so that both can be on one terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._console.print(without_passwords(self.format(record)), soft_wrap=True)
        except Exception:
            self.handleError(record)


def configure(console: Console, debug: bool) -> None:
    """Show INFO of our own loggers, and with --debug everything, also of libraries."""
    ours = logging.getLogger("wal2lake")
    for handler in [h for h in ours.handlers if isinstance(h, _ConsoleHandler)]:
        ours.removeHandler(handler)
    ours.addHandler(_ConsoleHandler(console))
    ours.setLevel(logging.DEBUG if debug else logging.INFO)
    ours.propagate = False
    # py4j logs a dead JVM to the root logger, which without a handler writes to stderr.
    root = logging.getLogger()
    (root.removeHandler if debug else root.addHandler)(_NOWHERE)
    for foreign in FOREIGN:
        logging.getLogger(foreign).setLevel(logging.WARNING if debug else logging.CRITICAL + 1)
