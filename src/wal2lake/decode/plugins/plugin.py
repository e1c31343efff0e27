"""The output plugins that are known besides pgoutput, and how each is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import test_decoding, wal2json
from .told import Told

_PARSERS: Mapping[str, Callable[[bytes], Told | None]] = {
    "test_decoding": test_decoding.parse,
    "wal2json": wal2json.parse,
}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "test_decoding": test_decoding.OPTIONS,
    "wal2json": wal2json.OPTIONS,
}
EXACT: Mapping[str, Mapping[str, str]] = {"test_decoding": {}, "wal2json": wal2json.EXACT_NUMBERS}


def plugin_options(name: str, exact: bool) -> dict[str, str]:
    """What a stream of a plugin is opened with, or a slot read with through SQL.

    `exact`: also what only newer versions know. Without it, some values are ambiguous.
    """
    return {**OPTIONS[name], **(EXACT[name] if exact else {})}


def parser(name: str, exact: bool) -> Callable[[bytes], Told | None]:
    """What reads a plugin's messages. `exact`: it was asked for what `EXACT` has."""
    return wal2json.parse_inexact if name == "wal2json" and not exact else _PARSERS[name]


def tells_commits_early(name: str) -> bool:
    """Whether the beginning of a transaction says where it commits."""
    return name == "wal2json"
