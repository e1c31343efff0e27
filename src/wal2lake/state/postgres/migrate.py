"""The tables of the state store: one file in `migrations/` for each version, applied in the order of their numbers."""

from __future__ import annotations

from pathlib import Path

_FILES = {
    int(file.name.partition("_")[0]): file for file in sorted((Path(__file__).parents[1] / "migrations").glob("*.sql"))
}
LATEST = max(_FILES)


def statements_after(version: int) -> str:
    """The statements that migrate a store from a version; 0: there is no store."""
    return "\n".join(file.read_text("utf-8") for number, file in sorted(_FILES.items()) if number > version)
