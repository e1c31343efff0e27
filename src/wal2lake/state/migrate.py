"""The tables of the state store: one file of `migrations/` for each version, applied in the order of their numbers."""

from __future__ import annotations

from pathlib import Path

_FILES = {
    int(file.name.partition("_")[0]): file for file in sorted(Path(__file__).with_name("migrations").glob("*.sql"))
}
LATEST = max(_FILES)


def statements_after(version: int) -> str:
    """The statements that bring a store of a version up to date; 0: there is none."""
    return "\n".join(file.read_text("utf-8") for number, file in sorted(_FILES.items()) if number > version)
