"""Spools: raw messages of open transactions, on disk until it is known whether each one commits.

    append ──► parts in memory ── full ──► frames in <directory>/<number>.spool: lengths, then messages
    truncate ◄── a subtransaction was rolled back        pieces ──► the messages again, a bounded portion at a time

Nothing here is durable: after a crash the slot sends it again. A finished spool does not change, so another thread may
read it while others grow.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ..executor import SYSTEM_EXECUTOR, Executor

Lengths = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

FRAME_BYTES = 1024 * 1024
"""what one transaction may keep in memory"""
BUFFER_BYTES = 16 * 1024 * 1024
"""what all transactions together may keep in memory"""
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class Piece:
    """Consecutive whole messages."""

    data: Bytes
    lengths: Lengths


@dataclass(frozen=True)
class _Frame:
    """Messages in the file: `count` lengths at `at`, then `size` bytes of messages."""

    at: int
    count: int
    size: int

    @property
    def data_at(self) -> int:
        return self.at + _LENGTH_BYTES * self.count

    @property
    def end(self) -> int:
        return self.data_at + self.size


class Spools:
    """The spools of one stream, in a directory of their own. Files left there by an earlier process are deleted."""

    def __init__(self, directory: Path, executor: Executor = SYSTEM_EXECUTOR) -> None:
        self.directory = directory
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        self._growing: dict[int, Spool] = {}
        self._number = 0
        self._lock = executor.lock()
        self._on_disk = 0
        self._in_memory = 0

    @property
    def bytes(self) -> int:
        """Bytes in files."""
        return self._on_disk

    @property
    def buffered(self) -> int:
        """Bytes in memory, of open transactions and of finished ones that are not removed yet."""
        return self._in_memory

    def open(self) -> Spool:
        """An empty spool."""
        self._number += 1
        made = Spool(self, self._number, self.directory / f"{self._number}.spool")
        self._growing[self._number] = made
        return made

    def close(self) -> None:
        """Remove everything; no spool may be used after."""
        self._growing.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
        with self._lock:
            self._on_disk = self._in_memory = 0

    def account(self, disk: int, memory: int) -> None:
        """Called by spools with changes of their sizes."""
        with self._lock:
            self._on_disk += disk
            self._in_memory += memory

    def keep_small(self) -> None:
        """Write growing spools to disk if all together hold too much memory."""
        if self._in_memory > BUFFER_BYTES:
            for spool in self._growing.values():
                spool.write()

    def no_longer_grows(self, number: int) -> None:
        self._growing.pop(number, None)


class Spool:
    """The messages of one transaction. Offsets count the bytes of its messages."""

    def __init__(self, spools: Spools, number: int, path: Path) -> None:
        self._spools, self._number, self._path = spools, number, path
        self._frames: list[_Frame] = []
        self._parts: list[Piece] = []
        self._in_frames = 0
        self._in_parts = 0
        self._gone = False
        self.messages = 0

    @property
    def size(self) -> int:
        """The offset after the last message."""
        return self._in_frames + self._in_parts

    def append(self, part: Piece) -> None:
        self._hold(part)
        if self._in_parts >= FRAME_BYTES:
            self.write()
        else:
            # A copy: what waits must not keep the larger buffer alive that it may be a slice of.
            self._parts[-1] = Piece(part.data.copy(), part.lengths)
        self._spools.keep_small()

    def _hold(self, part: Piece) -> None:
        self._parts.append(part)
        self._in_parts += len(part.data)
        self.messages += len(part.lengths)
        self._spools.account(0, len(part.data))

    def write(self) -> None:
        """Move what is in memory to the file."""
        if not self._parts:
            return
        count = sum(len(part.lengths) for part in self._parts)
        frame = _Frame(self._file_end, count, self._in_parts)
        with self._path.open("ab" if self._frames else "wb") as file:
            for part in self._parts:
                file.write(part.lengths.data)
            for part in self._parts:
                file.write(part.data.data)
        self._frames.append(frame)
        self._in_frames += frame.size
        self._release(frame.end - frame.at)

    def _release(self, disk: int) -> None:
        self._spools.account(disk, -self._in_parts)
        self._parts, self._in_parts = [], 0

    @property
    def _file_end(self) -> int:
        return self._frames[-1].end if self._frames else 0

    def truncate(self, offset: int) -> None:
        """Drop the messages from this offset on; a message must begin there."""
        if offset >= self.size:
            return
        kept = self._parts if offset > self._in_frames else []
        room = offset - self._in_frames
        self.messages -= sum(len(part.lengths) for part in self._parts)
        self._release(0)
        while self._frames and offset < self._in_frames:
            # A frame that is cut goes back to memory and is written again with what follows.
            frame = self._drop_frame()
            if offset > self._in_frames:
                room = offset - self._in_frames
                with self._path.open("rb") as file:
                    kept = [_read(file, frame)]
        self._shorten_file()
        for part in kept:
            some = int(np.searchsorted(np.cumsum(part.lengths, dtype=np.int64), room, "right"))
            if some:
                # A copy, so that what was cut off does not stay in memory.
                size = int(part.lengths[:some].sum(dtype=np.int64))
                self._hold(Piece(part.data[:size].copy(), part.lengths[:some].copy()))
                room -= size

    def _drop_frame(self) -> _Frame:
        frame = self._frames.pop()
        self._in_frames -= frame.size
        self.messages -= frame.count
        self._spools.account(frame.at - frame.end, 0)
        return frame

    def _shorten_file(self) -> None:
        if self._path.exists():
            with self._path.open("r+b") as file:
                file.truncate(self._file_end)

    def finish(self) -> None:
        """The transaction has ended: there are no changes after this."""
        self._spools.no_longer_grows(self._number)
        if self._spools.buffered > BUFFER_BYTES // 2:
            # Finished spools wait to be read and can't be written to disk later.
            self.write()

    def pieces(self, most_bytes: int) -> Iterator[Piece]:
        """The messages in order, in portions of at most that many bytes, or one message. Callers may modify them."""
        if self._frames:
            with self._path.open("rb") as file:
                for frame in self._frames:
                    yield from _portions(file, frame, most_bytes)
        for part in self._parts:
            for first, last, begin, end in _bounds(part.lengths, most_bytes):
                yield Piece(part.data[begin:end].copy(), part.lengths[first:last])

    def remove(self) -> None:
        """Delete it. May be called more than once."""
        if self._gone:
            return
        self._gone = True
        self._spools.no_longer_grows(self._number)
        self._path.unlink(missing_ok=True)
        self._release(-self._file_end)
        self._frames, self._in_frames = [], 0


def _bounds(lengths: Lengths, most_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """First and last message and first and last byte of each portion."""
    end = np.cumsum(lengths, dtype=np.int64)
    first, begin = 0, 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(end, begin + most_bytes, "right")))
        stop = int(end[last - 1])
        yield first, last, begin, stop
        first, begin = last, stop


def _portions(file: BinaryIO, frame: _Frame, most_bytes: int) -> Iterator[Piece]:
    file.seek(frame.at)
    lengths = np.fromfile(file, np.uint32, frame.count)
    file.seek(frame.data_at)
    for first, last, begin, end in _bounds(lengths, most_bytes):
        yield Piece(np.fromfile(file, np.uint8, end - begin), lengths[first:last])


def _read(file: BinaryIO, frame: _Frame) -> Piece:
    return next(_portions(file, frame, frame.size))
