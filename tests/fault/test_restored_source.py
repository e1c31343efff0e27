"""A source that was restored to an earlier point: restored from a copy of its files, or recovered to an earlier moment.

Its slot may be there, at a position that looks right; never is anything applied over what it has forgotten.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored, missed

from remedies import heals
from servers import Database, make_server
from waiting import wait_until
from wal2lake.demo.server import EmbeddedServer
from wal2lake.position import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("orders", "items")


class Restorable:
    """A server of its own, whose files can be kept and put back."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self._copy = server.directory / "copy-of-data"
        self.database = Database(server, "postgres")

    @contextmanager
    def down(self) -> Iterator[None]:
        self.database.close()
        self.server.stop()
        yield
        self.server.start()

    def keep(self) -> None:
        with self.down():
            shutil.copytree(self.server.data, self._copy, symlinks=True)
            self._own(self._copy)

    def put_back(self, *, recover: bool = False) -> None:
        """With `recover`: as after a recovery, on a timeline of its own."""
        with self.down():
            shutil.rmtree(self.server.data)
            shutil.copytree(self._copy, self.server.data, symlinks=True)
            if recover:
                (self.server.data / "standby.signal").touch()
            self._own(self.server.data)
        if recover:
            self.database.execute("SELECT pg_promote()")

    def promote(self) -> None:
        """What a failover does to the timeline, without a loss."""
        with self.down():
            (self.server.data / "standby.signal").touch()
            self._own(self.server.data)
        self.database.execute("SELECT pg_promote()")

    def write(self, *numbers: int) -> None:
        for number in numbers:
            for name in TABLES:
                self.database.execute(f"INSERT INTO {name} VALUES ({number}, 'new')")

    def now(self) -> Lsn:
        return Lsn.parse(self.database.value("SELECT pg_current_wal_insert_lsn()::text"))

    def _own(self, directory: Path) -> None:
        """The copy's files belong to who the server runs as."""
        owner = self.server.directory.stat()
        for path in (directory, *directory.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
            if path.is_dir():
                path.chmod(0o700)


@pytest.fixture
def source() -> Iterator[Restorable]:
    directory = Path(tempfile.mkdtemp(prefix="wal2lake-restored-"))
    directory.chmod(0o711)
    try:
        with make_server(directory / "postgres") as server:
            made = Restorable(server)
            for name in TABLES:
                made.database.execute(
                    f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 30) i"
                )
            yield made
            made.database.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def mirrored(source: Restorable, tmp_path: Path, spark: SparkSession) -> Mirrored:
    return Mirrored(source.database, tmp_path / "lake", spark, groups=[{"name": "default", "tables": ["public.*"]}])


def _captured_beyond_the_copy(source: Restorable, mirrored: Mirrored) -> Lsn:
    """The lake has more than the copy of the source's files."""
    mirrored.catches_up(*TABLES)
    source.keep()
    mirrored.configure()
    source.write(101, 102)
    mirrored.catches_up(*TABLES)
    return source.now()


def _refused_then_repaired(source: Restorable, mirrored: Mirrored) -> None:
    """Twice the same answer; what it says to do mends it."""
    mirrored.configure()
    for _ in range(2):
        lost = missed(mirrored.once())
        assert set(lost) == set(TABLES)
        for table in lost.values():
            assert "was restored to an earlier point" in f"{table.error}", table.error
            assert table.remedy == "re-copy the tables with: wal2lake tables resync --all"
    mirrored.apply_requests(lost[TABLES[0]].remedy)
    mirrored.catches_up(*TABLES)
    source.write(201)
    mirrored.catches_up(*TABLES)


@heals("SourceRestored")
def test_a_copy_whose_wal_ends_before_what_was_captured(source: Restorable, mirrored: Mirrored) -> None:
    captured = _captured_beyond_the_copy(source, mirrored)
    source.put_back()
    assert source.now() < captured
    _refused_then_repaired(source, mirrored)


@pytest.mark.slow
def test_a_copy_that_has_been_written_to_beyond_what_was_captured(source: Restorable, mirrored: Mirrored) -> None:
    captured = _captured_beyond_the_copy(source, mirrored)
    source.put_back()
    source.database.execute("SELECT pg_switch_wal()")
    source.write(103)
    assert source.now() > captured
    _refused_then_repaired(source, mirrored)


@pytest.mark.slow
def test_a_recovery_to_a_moment_before_what_was_captured(source: Restorable, mirrored: Mirrored) -> None:
    captured = _captured_beyond_the_copy(source, mirrored)
    source.put_back(recover=True)
    wait_until(lambda: not source.database.value("SELECT pg_is_in_recovery()"), 60, "promoted")
    source.database.execute("SELECT pg_switch_wal()")
    source.write(103)
    assert source.now() > captured
    # Without what the state store knows the timeline tells.
    source.database.execute("UPDATE wal2lake.groups SET logged_lsn = NULL")
    _refused_then_repaired(source, mirrored)


@pytest.mark.slow
def test_only_re_copied_tables_continue(source: Restorable, mirrored: Mirrored) -> None:
    captured = _captured_beyond_the_copy(source, mirrored)
    source.put_back()
    mirrored.configure()
    assert set(missed(mirrored.once())) == set(TABLES)
    mirrored.resync("orders")
    source.write(103)
    result = mirrored.once()
    assert set(missed(result)) == {"items"}
    mirrored.equal("orders")
    # Its old position is far beyond the new slot's, and says nothing all the same.
    source.database.execute("SELECT pg_switch_wal()")
    source.write(104)
    assert source.now() > captured
    assert set(missed(mirrored.once())) == {"items"}
    mirrored.resync("items")
    mirrored.catches_up(*TABLES)


@pytest.mark.slow
def test_a_promotion_that_lost_nothing_goes_on(source: Restorable, mirrored: Mirrored) -> None:
    mirrored.catches_up(*TABLES)
    source.write(101)
    source.promote()
    wait_until(lambda: not source.database.value("SELECT pg_is_in_recovery()"), 60, "promoted")
    source.write(102)
    mirrored.configure()
    mirrored.catches_up(*TABLES)
    assert source.database.value("SELECT timeline_id FROM pg_control_checkpoint()") == 2
