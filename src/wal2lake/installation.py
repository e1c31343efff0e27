"""Which mirror this is: a lake, and what was made for it in the source and in the state store.

Its id lies in the lake, at `_wal2lake/installation.json`, and goes wherever the lake goes. The state store and the
publications carry it, so that a second mirror on the same database neither uses nor drops what is another's.
"""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

FILE = "installation.json"
_MARK = "wal2lake installation "


@dataclass(frozen=True)
class Installation:
    root: Path
    """the directory of the change logs"""
    id: str | None
    """None: it has none yet"""

    @classmethod
    def of(cls, root: Path) -> Installation:
        """The installation of a lake, as far as it has an id."""
        found = _read(root / FILE)
        return cls(root, str(found["id"]) if found is not None and "id" in found else None)

    @classmethod
    def made(cls, root: Path) -> Installation:
        """The installation of a lake; it gets an id if it has none."""
        from .changelog.durable import create, replace

        if (known := cls.of(root)).id is None:
            root.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"id": secrets.token_hex(16)})
            try:
                create(root / FILE, text)
            except FileExistsError:
                # Somebody else made it at the same time, or it is damaged.
                if cls.of(root).id is None:
                    replace(root / FILE, text)
            known = cls.of(root)
        return known

    @property
    def place(self) -> str:
        """Where the lake is, for people; also tells that a lake was made again in the place of one that is gone."""
        return f"{socket.gethostname()}:{self.root.parent.absolute()}"

    @property
    def mark(self) -> str | None:
        """What its publications are commented with."""
        return None if self.id is None else f"{_MARK}{self.id}"

    def has_log(self, group: str) -> bool:
        return (self.root / group / "group.json").exists()

    def slot(self, group: str) -> str | None:
        """The slot that the change log of a group is from; None if there is no log."""
        found = _read(self.root / group / "group.json")
        return str(found["slot"]) if found is not None and "slot" in found else None


def is_mark(comment: str | None) -> bool:
    return comment is not None and comment.startswith(_MARK)


def _read(path: Path) -> dict[str, object] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
