"""Checksums: a byte of the change log that is not the one that was written is noticed when it is read.

JSON documents carry the SHA-256 of their own text as their first key, computed with zeros in its place. That of a
segment is in the manifest that names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import ChangeLogDamaged

_KEY = "sha256"
_ZEROS = "0" * 64


def seal(data: Mapping[str, Any]) -> str:
    text = json.dumps({_KEY: _ZEROS, **data}, indent=1, ensure_ascii=False)
    return text.replace(_ZEROS, _digest(text), 1)


def unseal(text: str, first: str) -> dict[str, Any]:
    """What was sealed. Raises ValueError if it is another text; one without a checksum must begin with key `first`."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("no document")
    digest = data.pop(_KEY, None)
    if digest is None:
        # Written before checksums were; unless it is the name of the checksum that was changed.
        if next(iter(data), None) != first:
            raise ValueError("no checksum")
    elif not isinstance(digest, str) or _digest(text.replace(digest, _ZEROS, 1)) != digest:
        raise ValueError("wrong checksum")
    return data


def file_digest(file: IO[bytes]) -> str:
    """The SHA-256 of a whole file."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto


def verify(path: Path, sha256: str) -> None:
    """Raises ChangeLogDamaged if a file is not the one that was written. Without a checksum it only has to be there."""
    try:
        with path.open("rb") as file:
            same = not sha256 or file_digest(file) == sha256
    except FileNotFoundError:
        raise ChangeLogDamaged(path=str(path), cause="the file is missing") from None
    if not same:
        raise ChangeLogDamaged(path=str(path), cause="its checksum is not the one in its manifest")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
