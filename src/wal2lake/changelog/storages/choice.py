"""Which storage a location is of, and which local directory serves it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..storage import LogStorage
from .directory import DirectoryStorage


def storage_for(location: str | os.PathLike[str]) -> LogStorage:
    """The storage of a directory, or of what a URI names. Raises ValueError if there is none for it."""
    directory = _directory(location)
    if directory is None:
        raise ValueError(f"no storage for {os.fspath(location).partition('://')[0]}://")
    return DirectoryStorage(directory)


def scratch_for(location: str | os.PathLike[str]) -> Path:
    """A local directory for files of one machine that are useless after a restart; it need not exist.

    Where the log is a directory it is the same one, so that both are on one disk and are removed together.
    """
    directory = _directory(location)
    if directory is not None:
        return directory
    known = hashlib.sha256(os.fspath(location).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"wal2lake-{known}"


def _directory(location: str | os.PathLike[str]) -> Path | None:
    """The directory that a location names; None if it is elsewhere."""
    text = os.fspath(location)
    scheme, separator, _ = text.partition("://")
    if separator:
        return Path(unquote(urlsplit(text).path)) if scheme.lower() == "file" else None
    return Path(text)
