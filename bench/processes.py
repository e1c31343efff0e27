"""What a process and those that it has started use: processor time, memory, open files. Read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from wal2lake.capture import child

from .machine import cpu_seconds

_PROC = Path("/proc")


@dataclass(frozen=True)
class Family:
    """The processes of one `wal2lake run`."""

    run: int
    driver: int
    """the JVM"""
    capture: int

    @classmethod
    def of(cls, run: int) -> Family | None:
        """None while one of them is missing."""
        below = descendants(run)
        drivers = [pid for pid in below if _name(pid) == "java"]
        captures = [pid for pid in below if child.__name__ in _command(pid)]
        return cls(run, drivers[0], captures[0]) if drivers and captures else None

    @property
    def members(self) -> dict[str, int]:
        return {"run process": self.run, "Spark driver": self.driver, "capture process": self.capture}

    def cpu_seconds(self) -> float:
        """Processor time of all of them until now; a member that is gone is an error."""
        used = [cpu_seconds(pid) for pid in self.members.values()]
        known = [seconds for seconds in used if seconds is not None]
        if len(known) < len(used):
            raise RuntimeError("a process of wal2lake run has ended")
        return sum(known)


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def resident_bytes(pid: int) -> int:
    pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    return sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())


def server_cpu_seconds(postmaster: int | None) -> float:
    """Processor time of a PostgreSQL: of its processes that live, and of those that have ended."""
    if postmaster is None:
        return 0.0
    ended = cpu_seconds(postmaster, reaped=True) or 0.0
    return ended + sum(cpu_seconds(pid) or 0.0 for pid in descendants(postmaster))


def _parent(pid: int) -> int | None:
    try:
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
