"""The statements of the state store: `state/sql/*.sql`, each after a line `-- name: ...` and with a reason."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PART = re.compile(r"^\{(\w+)\}$", re.MULTILINE)


@cache
def statements() -> dict[str, str]:
    """The statements by name; `{name}` on a line of its own is replaced by another one."""
    found: dict[str, str] = {}
    for file in sorted((Path(__file__).parents[1] / "sql").glob("*.sql")):
        _, *parts = _NAME.split(file.read_text("utf-8"))
        found |= {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return {name: _PART.sub(lambda part: found[part[1]], text) for name, text in found.items()}


@cache
def query(name: str) -> bytes:
    return statements()[name].encode()
