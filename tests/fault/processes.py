"""The processes of a run of the command line, as the kernel shows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wal2lake.capture import child

CAPTURE = child.__name__


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    began: str
    """in the kernel's clock ticks: distinguishes another process with the same pid"""
    command: str

    @property
    def alive(self) -> bool:
        found = _look(self.pid)
        return found is not None and found.began == self.began

    @property
    def is_capture(self) -> bool:
        return CAPTURE in self.command

    @property
    def is_java(self) -> bool:
        return Path(self.command.split("\0", 1)[0]).name == "java"


def capture_of(pid: int) -> Process | None:
    return next((each for each in descendants(pid) if each.is_capture), None)


def frozen(pid: int) -> bool:
    """Whether a process has been stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def descendants(pid: int) -> list[Process]:
    """All processes that a process started, and those that they started."""
    children: dict[int, list[Process]] = {}
    for each in _all():
        children.setdefault(each.parent, []).append(each)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [each.pid for each in below]
    return found


def _all() -> Iterator[Process]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (found := _look(int(path.name))) is not None:
            yield found


def _look(pid: int) -> Process | None:
    """None if there is no such process, or only what remains of it until its parent has asked."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else Process(pid, int(fields[1]), fields[19], command)
