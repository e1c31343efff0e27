"""Which storage a location is of."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .directory import DirectoryStorage
from .storage import LogStorage


def storage_for(location: str | os.PathLike[str]) -> LogStorage:
    """The storage of a directory, or of what a URI names. Raises ValueError if there is none for it."""
    text = os.fspath(location)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return DirectoryStorage(Path(text))
    if scheme.lower() != "file":
        raise ValueError(f"no storage for {scheme}://")
    return DirectoryStorage(Path(unquote(urlsplit(text).path)))
