"""Small files that appear under their names whole and on disk, or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def create(path: Path, text: str) -> None:
    """Make a file appear whole and durable; FileExistsError if the name is taken."""
    temporary = _write_temporary(path, text)
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_directory(path.parent)


def replace(path: Path, text: str) -> None:
    _write_temporary(path, text).rename(path)
    sync_directory(path.parent)


def read(path: Path) -> str | None:
    """What a file holds; None if there is none."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None


def _write_temporary(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def belongs_to_another(temporary: Path) -> bool:
    """Whether another process that is alive is writing a temporary file; its name has the process's number."""
    pid = temporary.name.split(".")[-2]
    if not pid.isdigit() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
