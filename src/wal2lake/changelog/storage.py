"""The port between a change log and the place where it is stored: `LogStorage`, its contract and its values.

A storage keeps objects (byte strings) under names: relative keys with `/` between their parts, such as
`manifests/7.json`. It does not know what they mean. `storages/directory.py` is the implementation for production,
`storages/memory.py` the one for simulations. `tests/contract/test_log_storage.py` checks the contract for each of them.

Two processes use a log at the same time: capture writes, the main process reads and deletes. What they can rely on:

- Whole: an object is seen complete or not at all, by every process, as soon as the call that put it has returned.
- Durable: when a call that puts an object returns, the object survives a power failure.
- Listings: a listing contains every name that exists from its start to its end. A name that is added or deleted
  meanwhile may be in it or not.
- Deleted while being read: the reader gets the remaining bytes, or FileNotFoundError.
- Errors: any call can fail before its work or after it was done. Look at what is stored before you put it again.
- Full or read-only: OSError with ENOSPC, EDQUOT, EROFS or EACCES, and the location in `filename` where it is known.
- All methods can be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Protocol

from .stamp import Mark


class Stat(NamedTuple):
    """What is known of an object without reading it."""

    bytes: int
    tag: object
    """changes whenever the object is replaced"""


class Written(NamedTuple):
    """A segment that is complete and durable."""

    bytes: int
    sha256: str
    """of all its bytes"""


class AlreadyHeld(Exception):
    """The place is held by another process, or by another part of this one."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder
        """for people: `process 4711`"""


class OpenSegment(Protocol):
    """A segment that is being written, by one thread at a time. No manifest names it yet, so it has no readers.

    Its name may be listed as soon as it is open. A segment that is never finished is an orphan; whoever lists it can
    delete it.
    """

    @property
    def sink(self) -> BinaryIO:
        """Where its bytes are written, in order. It is closed after `finish`, `abandon` and `discard`."""
        ...

    def stamp(self, marks: Iterable[Mark]) -> None:
        """Replace marks in bytes that are already written. Call it after the last write and before `finish`.

        Raises ValueError if the range of a mark does not contain it exactly once.
        """
        ...

    def finish(self) -> Written:
        """Make the segment and its name durable. ValueError if the sink is closed; any error closes the sink."""
        ...

    def abandon(self) -> None:
        """Stop writing and leave what a process that dies leaves. Never raises; a second call does nothing."""
        ...

    def discard(self) -> None:
        """Stop writing and delete the segment, also if it was finished. A second call does nothing."""
        ...


class LogStorage(Protocol):
    """A place for change logs, or the part of it that belongs to one group.

    A name that starts or ends with `/`, or has an empty part, `.` or `..`, raises ValueError.
    """

    def within(self, prefix: str) -> LogStorage:
        """The same storage, with names relative to a prefix. The prefix need not exist."""
        ...

    def prepare(self, *prefixes: str) -> None:
        """Create the place, and the prefixes where they have to be created. What exists is kept.

        Before this, and after `remove`, every call that writes raises FileNotFoundError.
        """
        ...

    def put_new(self, name: str, data: bytes) -> None:
        """Put an object if the name is free, atomically. FileExistsError if not: of several callers one wins."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Put an object or replace it, atomically: at any time readers see the old one or the new one."""
        ...

    def get(self, name: str) -> bytes | None:
        """An object's bytes; None if it is missing."""
        ...

    def open(self, name: str) -> BinaryIO:
        """An object as a file that can be read and seeked. FileNotFoundError if it is missing."""
        ...

    def stat(self, name: str) -> Stat | None:
        """Size and tag of an object, at the price of one request; None if it is missing."""
        ...

    def names(self, prefix: str = "") -> list[str]:
        """The names directly below a prefix, sorted by code points; an empty list if there are none.

        Temporary files and locks of an implementation are not among them.
        """
        ...

    def prefixes(self, prefix: str = "") -> list[str]:
        """The prefixes directly below a prefix, sorted by code points. One that has no name below it may be absent."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is no error. After a power failure the object may exist again."""
        ...

    def remove(self) -> None:
        """Delete the place with everything in it. What cannot be deleted stays."""
        ...

    def sweep(self) -> int:
        """Delete what writers left that died during a put; how many. What other processes are putting stays."""
        ...

    def open_segment(self, name: str) -> OpenSegment:
        """Start to write a large object in parts. FileExistsError if the name is taken."""
        ...

    def held(self) -> AbstractContextManager[None]:
        """Hold the place exclusively, and prepare it. Raises AlreadyHeld. Released when the process ends in any way."""
        ...

    def uri(self, name: str = "") -> str:
        """The location of an object or of the place, as Spark reads it and messages show it; it need not exist."""
        ...


def checked(name: str) -> str:
    """The name, if it is valid."""
    parts = f"/{name}/"
    if "//" in parts or "/./" in parts or "/../" in parts:
        raise ValueError(f"{name!r} is no name")
    return name
