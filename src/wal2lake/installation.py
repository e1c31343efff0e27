"""An installation: one lake, and everything that was made for it in the source and in the state store.

Its id is in the lake, in `_wal2lake/installation.json`, and moves with the lake. State store and publications carry the
id, so that a second installation on the same database neither uses nor drops objects of the first.
"""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .changelog import LogStorage

FILE = "installation.json"
_MARK = "wal2lake installation "


@dataclass(frozen=True)
class Installation:
    root: Path
    """the directory of the change logs"""
    id: str | None
    """None: no id has been given yet"""

    @classmethod
    def of(cls, root: Path) -> Installation:
        """The installation of a lake; its id is None if it has none."""
        found = _read(root, FILE)
        return cls(root, str(found["id"]) if found is not None and "id" in found else None)

    @classmethod
    def made(cls, root: Path) -> Installation:
        """The installation of a lake; it is given an id if it has none."""
        if (known := cls.of(root)).id is None:
            storage = _storage(root)
            storage.prepare()
            data = json.dumps({"id": secrets.token_hex(16)}).encode()
            try:
                storage.put_new(FILE, data)
            except FileExistsError:
                # Another process wrote it at the same time, or it is damaged.
                if cls.of(root).id is None:
                    storage.put(FILE, data)
            known = cls.of(root)
        return known

    @property
    def place(self) -> str:
        """Where the lake is, for messages; also shows that a new lake was made in the place of another."""
        return f"{socket.gethostname()}:{self.root.parent.absolute()}"

    @property
    def mark(self) -> str | None:
        """The comment on its publications."""
        return None if self.id is None else f"{_MARK}{self.id}"

    def has_log(self, group: str) -> bool:
        return _storage(self.root).stat(f"{group}/group.json") is not None

    def slot(self, group: str) -> str | None:
        """The slot that the change log of a group was read from; None if there is no log."""
        found = _read(self.root, f"{group}/group.json")
        return str(found["slot"]) if found is not None and "slot" in found else None


def is_mark(comment: str | None) -> bool:
    return comment is not None and comment.startswith(_MARK)


def _read(root: Path, name: str) -> dict[str, object] | None:
    try:
        found = json.loads(_storage(root).get(name) or b"")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _storage(root: Path) -> LogStorage:
    from .changelog import storage_for

    return storage_for(root)
