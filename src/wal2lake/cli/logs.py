"""Logging of the command line: our own loggers, one compact line each, on stderr. The library configures nothing."""

from __future__ import annotations

import logging
import re

from rich.console import Console

FOREIGN = ("py4j", "pyspark", "psycopg")
"""loggers of libraries whose warnings come as errors of ours, too"""
_NOWHERE = logging.NullHandler()
_PASSWORD_IN_URL = re.compile(r"(://[^:/@\s]*:)[^@\s]+@")
_PASSWORD_PAIR = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """A second fence: secrets are a type that does not print itself, but a foreign text may quote a DSN."""
    return _PASSWORD_PAIR.sub(r"\1***", _PASSWORD_IN_URL.sub(r"\1***@", text))


class _ConsoleHandler(logging.Handler):
    """Writes through the console that draws the progress bars, so that lines and bars don't tear each other."""

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
    """INFO of our own loggers, DEBUG with --debug; the libraries' are silent unless debugging."""
    ours = logging.getLogger("wal2lake")
    for handler in [h for h in ours.handlers if isinstance(h, _ConsoleHandler)]:
        ours.removeHandler(handler)
    ours.addHandler(_ConsoleHandler(console))
    ours.setLevel(logging.DEBUG if debug else logging.INFO)
    ours.propagate = False
    # py4j tells the root logger of a JVM that has died, and a root logger without a handler writes to stderr.
    root = logging.getLogger()
    (root.removeHandler if debug else root.addHandler)(_NOWHERE)
    for foreign in FOREIGN:
        logging.getLogger(foreign).setLevel(logging.WARNING if debug else logging.CRITICAL + 1)
