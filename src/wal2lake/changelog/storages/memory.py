"""Change logs in memory, for simulations and tests: the whole contract of a `LogStorage` except durability.

Parts of a program that share a `MemoryStorage` act as processes that share a directory. A hook is called before and
after each call's work and may raise; `Faults` is a hook that raises at given call indexes.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from ..stamp import Mark, exchange
from ..storage import AlreadyHeld, OpenSegment, Stat, Written, checked


@dataclass(frozen=True)
class Call:
    """A call of the storage or of one of its segments."""

    index: int
    """calls are counted from 0, over the whole storage"""
    operation: str
    """name of the method; of a segment: `segment.write`, `segment.stamp`, `segment.finish`, `segment.discard`"""
    name: str
    done: bool
    """False: before the work. True: after it; an error raised here reports work as failed that was done"""


Hook = Callable[[Call], None]


class Faults:
    """A hook that raises errors at given call indexes, each once."""

    def __init__(self) -> None:
        self._errors: dict[tuple[int, bool], Exception] = {}

    def before(self, index: int, error: Exception) -> None:
        """Make a call fail before its work."""
        self._errors[index, False] = error

    def after(self, index: int, error: Exception) -> None:
        """Make a call fail after its work."""
        self._errors[index, True] = error

    def __call__(self, call: Call) -> None:
        if (error := self._errors.pop((call.index, call.done), None)) is not None:
            raise error


class _Stored(NamedTuple):
    data: bytes
    tag: int


@dataclass(eq=False)
class _Shared:
    """State of a storage, shared by all that was made with `within`. Names are complete."""

    hook: Hook | None
    capacity: int | None
    owner: Callable[[], str]
    """names the process that calls"""
    things: dict[str, _Stored] = field(default_factory=dict)
    prepared: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    open: dict[str, _Segment] = field(default_factory=dict)
    calls: int = 0
    puts: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def call(self, operation: str, name: str) -> Iterator[None]:
        # Others may do something while the hook waits.
        with self.lock:
            index, self.calls = self.calls, self.calls + 1
        if self.hook is not None:
            self.hook(Call(index, operation, name, False))
        with self.lock:
            yield
        if self.hook is not None:
            self.hook(Call(index, operation, name, True))

    def store(self, name: str, data: bytes) -> None:
        before = self.things.get(name)
        self.need_room(name, len(data) - (len(before.data) if before is not None else 0))
        self.keep(name, data)

    def keep(self, name: str, data: bytes) -> None:
        self.puts += 1
        self.things[name] = _Stored(data, self.puts)

    def need_room(self, name: str, more: int) -> None:
        if self.capacity is None or more <= 0:
            return
        used = sum(len(stored.data) for stored in self.things.values())
        used += sum(segment.size for segment in self.open.values())
        if used + more > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), _uri(name))


class MemoryStorage:
    """A `LogStorage` in memory. `capacity` is the number of bytes at which it is full; None: unlimited.

    `owner` names the process that calls, where several are simulated in one.
    """

    def __init__(
        self, hook: Hook | None = None, capacity: int | None = None, owner: Callable[[], str] | None = None
    ) -> None:
        self._shared = _Shared(hook, capacity, owner or (lambda: f"process {os.getpid()}"))
        self._prefix = ""

    @property
    def calls(self) -> int:
        """Number of calls so far, which is the index of the next one."""
        return self._shared.calls

    @property
    def capacity(self) -> int | None:
        return self._shared.capacity

    @capacity.setter
    def capacity(self, most: int | None) -> None:
        self._shared.capacity = most

    def peek(self, name: str) -> bytes | None:
        """An object's bytes, without a call of the storage; None if it is missing."""
        stored = self._shared.things.get(self._whole(name))
        return None if stored is None else stored.data

    def crash(self, owner: str | None = None) -> None:
        """Simulate the death of a process, or of all: what it holds here is released, its segments become orphans."""
        shared = self._shared
        with shared.lock:
            for prefix, holder in list(shared.holders.items()):
                if prefix.startswith(self._prefix) and owner in (None, holder):
                    del shared.holders[prefix]
            for name, segment in list(shared.open.items()):
                if name.startswith(self._prefix) and owner in (None, segment.owner):
                    segment.dead = True
                    segment.abandon()

    def peek_names(self, start: str) -> list[str]:
        """The names of what is stored that begin so, without a call."""
        return [name for name in self._shared.things if name.startswith(self._prefix + start)]

    def within(self, prefix: str) -> MemoryStorage:
        part = MemoryStorage.__new__(MemoryStorage)
        part._shared, part._prefix = self._shared, f"{self._prefix}{checked(prefix)}/"
        return part

    def prepare(self, *prefixes: str) -> None:
        for prefix in prefixes:
            checked(prefix)
        with self._call("prepare", ""):
            self._prepare()

    def put_new(self, name: str, data: bytes) -> None:
        whole = self._whole(name)
        with self._call("put_new", whole):
            self._require_prepared()
            if whole in self._shared.things or whole in self._shared.open:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), _uri(whole))
            self._shared.store(whole, bytes(data))

    def put(self, name: str, data: bytes) -> None:
        whole = self._whole(name)
        with self._call("put", whole):
            self._require_prepared()
            self._shared.store(whole, bytes(data))

    def get(self, name: str) -> bytes | None:
        whole = self._whole(name)
        with self._call("get", whole):
            stored = self._shared.things.get(whole)
        return None if stored is None else stored.data

    def open(self, name: str) -> BinaryIO:
        whole = self._whole(name)
        with self._call("open", whole):
            stored = self._shared.things.get(whole)
            if stored is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), _uri(whole))
        return io.BytesIO(stored.data)

    def stat(self, name: str) -> Stat | None:
        whole = self._whole(name)
        with self._call("stat", whole):
            stored = self._shared.things.get(whole)
        return None if stored is None else Stat(len(stored.data), stored.tag)

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name, rest in self._below("names", prefix) if not rest)

    def prefixes(self, prefix: str = "") -> list[str]:
        return sorted({name for name, rest in self._below("prefixes", prefix) if rest})

    def delete(self, name: str) -> None:
        whole = self._whole(name)
        with self._call("delete", whole):
            self._shared.things.pop(whole, None)

    def remove(self) -> None:
        with self._call("remove", ""):
            for name in [name for name in self._shared.things if name.startswith(self._prefix)]:
                del self._shared.things[name]
            self._shared.prepared = {place for place in self._shared.prepared if not place.startswith(self._prefix)}

    def sweep(self) -> int:
        # A put that fails leaves nothing behind.
        with self._call("sweep", ""):
            return 0

    def open_segment(self, name: str) -> OpenSegment:
        whole = self._whole(name)
        with self._call("open_segment", whole):
            self._require_prepared()
            if whole in self._shared.things:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), _uri(whole))
            self._shared.store(whole, b"")
            opened = self._shared.open[whole] = _Segment(self._shared, whole)
        return opened

    @contextmanager
    def held(self) -> Iterator[None]:
        holder, taken = self._shared.owner(), False
        try:
            with self._call("held", ""):
                if (other := self._shared.holders.get(self._prefix)) is not None:
                    raise AlreadyHeld(other)
                self._prepare()
                self._shared.holders[self._prefix], taken = holder, True
            yield
        finally:
            with self._shared.lock:
                # After a crash it may be another's.
                if taken and self._shared.holders.get(self._prefix) == holder:
                    del self._shared.holders[self._prefix]

    def uri(self, name: str = "") -> str:
        return _uri(self._whole(name) if name else self._prefix.rstrip("/"))

    def _whole(self, name: str) -> str:
        return self._prefix + checked(name)

    def _call(self, operation: str, whole: str) -> AbstractContextManager[None]:
        return self._shared.call(operation, whole or self._prefix.rstrip("/"))

    def _prepare(self) -> None:
        self._shared.prepared.add(self._prefix)

    def _require_prepared(self) -> None:
        if not any(place.startswith(self._prefix) for place in self._shared.prepared):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri())

    def _below(self, operation: str, prefix: str) -> Iterator[tuple[str, str]]:
        """Each name below a prefix, cut after its next part, and the rest of it."""
        start = self._whole(prefix) + "/" if prefix else self._prefix
        with self._call(operation, start.rstrip("/")):
            names = [name for name in self._shared.things if name.startswith(start)]
        for name in names:
            part, _, rest = name[len(start) :].partition("/")
            yield f"{prefix}/{part}" if prefix else part, rest


class _Segment:
    def __init__(self, shared: _Shared, name: str) -> None:
        self._shared, self._name = shared, name
        self._sink = _Sink(self)
        self.owner = shared.owner()
        self.dead = False
        """its process died: later writes are dropped"""

    @property
    def sink(self) -> BinaryIO:
        return self._sink

    @property
    def size(self) -> int:
        return 0 if self._sink.closed else self._sink.getbuffer().nbytes

    def writing(self, end: int) -> AbstractContextManager[None]:
        """The call of a write that ends at an offset."""
        with self._shared.lock:
            self._shared.need_room(self._name, end - self.size)
        return self._shared.call("segment.write", self._name)

    def stamp(self, marks: Iterable[Mark]) -> None:
        with self._shared.call("segment.stamp", self._name):
            exchange(self._sink, marks)

    def finish(self) -> Written:
        try:
            with self._shared.call("segment.finish", self._name):
                data = self._sink.getvalue()
                self._close(data)
        finally:
            self.abandon()
        return Written(len(data), hashlib.sha256(data).hexdigest())

    def abandon(self) -> None:
        with self._shared.lock:
            if not self._sink.closed:
                self._close(self._sink.getvalue())

    def discard(self) -> None:
        with self._shared.call("segment.discard", self._name):
            self.abandon()
            self._shared.things.pop(self._name, None)

    def _close(self, data: bytes) -> None:
        self._sink.close()
        self._shared.open.pop(self._name, None)
        # A sweep of orphans may have deleted it.
        if self._name in self._shared.things:
            self._shared.keep(self._name, data)


class _Sink(io.BytesIO):
    def __init__(self, segment: _Segment) -> None:
        super().__init__()
        self._segment = segment

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        if self._segment.dead:
            return size
        with self._segment.writing(self.tell() + size):
            return super().write(data)


def _uri(whole: str) -> str:
    return f"memory:///{whole}"
