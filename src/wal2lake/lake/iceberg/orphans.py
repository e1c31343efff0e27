"""Orphan files: files in a table's directory that no version of the table refers to."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


def newer(directory: Path, since: float) -> Iterator[Path]:
    """Files below a directory that were last written at a time or after it."""
    for folder, _, names in os.walk(directory):
        for path in (Path(folder) / name for name in names):
            if path.stat().st_mtime >= since:
                yield path


def unreferenced(directory: Path, old: list[Path], referenced: frozenset[str]) -> list[Path]:
    """The files that no version refers to."""
    # If none of the table's files has a path in this directory, its metadata uses another form of the path.
    known = any(file.startswith(f"{directory}{os.sep}") for file in referenced)
    return [path for path in old if owner(path) not in referenced] if known else []


def owner(path: Path) -> str:
    """The file that a file belongs to: a checksum file to the file in its name."""
    checksum = path.name.startswith(".") and path.name.endswith(".crc")
    return str(path.with_name(path.name[1:-4]) if checksum else path)
