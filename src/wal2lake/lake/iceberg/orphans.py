"""Orphan files: files in a table's directory that no version of the table refers to."""

from __future__ import annotations

import os
from pathlib import Path


def older(directory: Path, than: float) -> list[Path]:
    """Files below a directory that were last written before a time."""
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            try:
                if path.stat().st_mtime < than:
                    found.append(path)
            except FileNotFoundError:
                continue
    return found


def unreferenced(directory: Path, old: list[Path], referenced: frozenset[str]) -> list[Path]:
    """The files that no version refers to; a checksum file belongs to the file in its name."""

    def owner(path: Path) -> str:
        checksum = path.name.startswith(".") and path.name.endswith(".crc")
        return str(path.with_name(path.name[1:-4]) if checksum else path)

    # If none of the table's files has a path in this directory, its metadata uses another form of the path.
    known = any(file.startswith(f"{directory}{os.sep}") for file in referenced)
    return [path for path in old if owner(path) not in referenced] if known else []
