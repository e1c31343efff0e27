"""What it means when a server refuses to decode a slot, over a replication connection or through SQL."""

from __future__ import annotations

import re

from ...config import SourceConfig
from ...errors import ConnectionFailed, SlotInUse, SlotLost, SourceError, SourceRefused
from ...position import Lsn
from ..sessions.connect import server_name
from .wire import Said


def refused(source: SourceConfig, slot: str, acknowledged: Lsn, said: Said) -> Exception:
    """The error for what the server said."""
    lost = {
        # The slot is missing, or the publication was when a change was made: lost either way.
        "42704": "can't be read",
        "58P01": "needs WAL that is gone",
        "55000": "was invalidated",
    }
    if said.state in lost:
        return SlotLost(slot=slot, cause=f"{lost[said.state]} ({said.text})", lsn=acknowledged)
    if said.state == "55006":
        pid = "".join(char for char in said.text.rpartition(" ")[2] if char.isdigit())
        return SlotInUse(slot=slot, holder=f"server process {pid or '?'}", pid=pid or "?")
    if said.state == "22023":
        return SourceRefused(
            operation="streaming", object=f"from slot {slot}", cause=said.text, remedy="[source] plugin = 'pgoutput'"
        )
    if not said.state or said.state[:2] in ("08", "57"):
        return broken(source, said.text)
    return SourceError(operation=f"streaming from slot {slot}", cause=said.text)


def broken(source: SourceConfig, message: str) -> ConnectionFailed:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return ConnectionFailed(server=server_name(source), cause=lines[0] if lines else "connection lost")


def skipped(said: Said, publications: tuple[str, ...]) -> str | None:
    """Why changes are missing, if a notice says so."""
    # Servers from 18 on only warn if a publication did not exist when a change was made, and skip the change.
    for name in publications if said.state == "55000" else ():
        # The text around the name, and its quotes, are in the server's language.
        if names(said.text, name):
            return f"had no publication {name} for a while"
    return None


def names(text: str, name: str) -> bool:
    """Whether a text contains a name that is not part of a longer one."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
