"""Checksums: detect bytes of the change log that differ from what was written.

JSON documents have the SHA-256 of their own text as their first key, computed with zeros in its place. The SHA-256 of a
segment is in the manifest that names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from ..errors import ChangeLogDamaged

if TYPE_CHECKING:
    from .storage import LogStorage

_KEY = "sha256"
_ZEROS = "0" * 64


def seal(data: Mapping[str, Any]) -> str:
    text = json.dumps({_KEY: _ZEROS, **data}, indent=1, ensure_ascii=False)
    return text.replace(_ZEROS, _digest(text), 1)


def unseal(text: str, first: str) -> dict[str, Any]:
    """The document. Raises ValueError if its text was changed; one without a checksum must begin with key `first`."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("no document")
    digest = data.pop(_KEY, None)
    if digest is None:
        # Written before checksums existed, or the key of the checksum was changed.
        if next(iter(data), None) != first:
            raise ValueError("no checksum")
    elif not isinstance(digest, str) or _digest(text.replace(digest, _ZEROS, 1)) != digest:
        raise ValueError("wrong checksum")
    return data


def file_digest(file: IO[bytes]) -> str:
    """The SHA-256 of a whole file."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto


def verify(storage: LogStorage, name: str, sha256: str) -> None:
    """Raises ChangeLogDamaged if a file differs from what was written. Without a checksum it only has to exist."""
    try:
        with storage.open(name) as file:
            same = not sha256 or file_digest(file) == sha256
    except FileNotFoundError:
        raise ChangeLogDamaged(path=storage.uri(name), cause="the file is missing") from None
    if not same:
        raise ChangeLogDamaged(path=storage.uri(name), cause="its checksum is not the one in its manifest")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
