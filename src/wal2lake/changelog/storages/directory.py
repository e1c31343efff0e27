"""Change logs in a directory: a name is a path below it, an object is a file.

    put_new   temporary file, fsync, link to the name, fsync of the directory
    put       temporary file, fsync, rename to the name, fsync of the directory
    segment   written under its own name, fsync when it is finished, fsync of the directory
    held      flock of the file `lock`, which contains the id of the process that holds it

Temporary files are hidden, and their names contain the ids of their process and thread: `.<name>.<pid>.<tid>.tmp`.
Scratch directories are beside the objects.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..checksum import file_digest
from ..stamp import Mark, exchange
from ..storage import AlreadyHeld, OpenSegment, Stat, Written, checked

_WRITER = re.compile(r"\.(\d+)(\.\d+)?\.tmp$")
"""the process, and the thread, in the name of a temporary file"""
_LOCK = "lock"


class DirectoryStorage:
    """A `LogStorage` on a file system with POSIX fsync, link, rename and flock."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory).absolute()
        self._base = str(self._directory)
        self._made: set[Path] = set()
        """directories whose entries in their parents are durable"""

    def within(self, prefix: str) -> DirectoryStorage:
        return DirectoryStorage(self._directory / checked(prefix))

    def prepare(self, *prefixes: str) -> None:
        below = [self._path(prefix) for prefix in prefixes]
        self._directory.mkdir(parents=True, exist_ok=True)
        _sync_directory(self._directory.parent)
        for directory in below:
            self._make(directory)

    def put_new(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._make(path.parent)
        temporary = _write_temporary(path, data)
        try:
            os.link(temporary, path)
        finally:
            temporary.unlink()
        _sync_directory(path.parent)

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._make(path.parent)
        _write_temporary(path, data).rename(path)
        _sync_directory(path.parent)

    def get(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, name: str) -> BinaryIO:
        return self._path(name).open("rb")

    def stat(self, name: str) -> Stat | None:
        try:
            facts = os.stat(f"{self._base}/{checked(name)}")  # noqa: PTH116 - called often; a Path costs more than it
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stat(facts.st_size, (facts.st_ino, facts.st_mtime_ns))

    def names(self, prefix: str = "") -> list[str]:
        found = (entry.name for entry in self._entries(prefix) if entry.is_file())
        before = f"{prefix}/" if prefix else ""
        return sorted(f"{before}{name}" for name in found if name[0] != "." and (prefix or name != _LOCK))

    def prefixes(self, prefix: str = "") -> list[str]:
        before = f"{prefix}/" if prefix else ""
        return sorted(f"{before}{entry.name}" for entry in self._entries(prefix) if entry.is_dir())

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._made.clear()

    def sweep(self) -> int:
        # The other process of the group writes as well, and may be about to link or rename its file.
        left = [path for path in self._directory.rglob("*.tmp") if path.is_file() and not _belongs_to_another(path)]
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def open_segment(self, name: str) -> OpenSegment:
        path = self._path(name)
        self._make(path.parent)
        return _SegmentFile(path)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
                raise AlreadyHeld(f"process {holder or '?'}") from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(fd)

    def uri(self, name: str = "") -> str:
        return f"{self._base}/{checked(name)}" if name else self._base

    def _path(self, name: str) -> Path:
        return self._directory / checked(name)

    def _entries(self, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._path(prefix) if prefix else self._directory) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _make(self, directory: Path) -> None:
        """Create a directory below the place and make its entry durable. FileNotFoundError if there is no place."""
        if directory == self._directory or (directory in self._made and directory.exists()):
            return
        self._make(directory.parent)
        try:
            directory.mkdir(exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
        _sync_directory(directory.parent)
        self._made.add(directory)


class _SegmentFile:
    """A segment that is written under its own name. Its checksum is computed from the page cache after the fsync."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("x+b")

    @property
    def sink(self) -> BinaryIO:
        return self._file

    def stamp(self, marks: Iterable[Mark]) -> None:
        exchange(self._file, marks)

    def finish(self) -> Written:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            digest = file_digest(file)
        _sync_directory(self._path.parent)
        return Written(size, digest)

    def abandon(self) -> None:
        with suppress(OSError):
            self._file.close()

    def discard(self) -> None:
        self.abandon()
        self._path.unlink(missing_ok=True)


def _write_temporary(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _belongs_to_another(temporary: Path) -> bool:
    """Whether another process that is alive is writing a temporary file."""
    found = _WRITER.search(temporary.name)
    if found is None or int(found[1]) == os.getpid():
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
