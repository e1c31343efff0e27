"""A slot that is gone, replaced or invalidated: said at once, nothing applied over the gap, and the remedy repairs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored, lines_of_error, missed

from command import Project
from remedies import fixes, heals
from servers import Database, fresh_database
from waiting import wait_until
from wal2lake.demo.compare import open_catalog
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import SlotLost
from wal2lake.preflight.collect import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("orders", "items")


def _make(database: Database) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text); INSERT INTO orders SELECT i, 'v' FROM generate_series(1, 30) i;"
        "CREATE TABLE items (id int PRIMARY KEY, v text); INSERT INTO items SELECT i, 'v' FROM generate_series(1, 30) i"
    )


def _change(database: Database, number: int) -> None:
    for name in TABLES:
        database.execute(f"INSERT INTO {name} VALUES ({number}, 'new'); DELETE FROM {name} WHERE id = {number} - 100")


def _held(lake: Path) -> dict[str, set[int]]:
    """The ids that the lake has."""
    with open_catalog(lake) as catalog:
        return {name: set(catalog.load_table(("public", name)).scan().to_arrow()["id"].to_pylist()) for name in TABLES}


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    _make(database)
    return Mirrored(database, tmp_path / "lake", spark)


def _assert_refused_then_repaired(mirrored: Mirrored) -> None:
    """Twice the same answer; the lake stays what it was; a re-copy of all tables mends it."""
    before = _held(mirrored.lake)
    for number in (103, 104):
        _change(mirrored.database, number)
        lost = missed(mirrored.once())
        assert set(lost) == set(TABLES)
        for table in lost.values():
            assert mirrored.slot in f"{table.error}" and "may be missing" in f"{table.error}", table.error
            assert table.remedy == "re-copy the tables with: wal2lake tables resync --all"
        assert _held(mirrored.lake) == before
    mirrored.apply_requests(lost[TABLES[0]].remedy)
    mirrored.catches_up(*TABLES)
    _change(mirrored.database, 105)
    mirrored.catches_up(*TABLES)


@heals("SlotLost: replication slot")
def test_a_slot_that_was_dropped(mirrored: Mirrored) -> None:
    mirrored.catches_up(*TABLES)
    _change(mirrored.database, 101)
    mirrored.database.execute("SELECT pg_drop_replication_slot(%s)", [mirrored.slot])
    _change(mirrored.database, 102)
    _assert_refused_then_repaired(mirrored)


@fixes("judge_slot: wal2lake tables resync --all")
def test_a_dropped_slot_is_reported_by_check_before_a_run(mirrored: Mirrored) -> None:
    mirrored.catches_up(*TABLES)
    mirrored.database.execute("SELECT pg_drop_replication_slot(%s)", [mirrored.slot])
    _change(mirrored.database, 101)
    (found,) = [finding for finding in check(mirrored.config) if finding.blocks]
    mirrored.apply_requests(found.fix)
    mirrored.catches_up(*TABLES)
    assert not [finding for finding in check(mirrored.config) if finding.blocks]


@pytest.mark.slow
def test_a_slot_that_was_dropped_and_created_again_with_the_same_name(mirrored: Mirrored) -> None:
    mirrored.catches_up(*TABLES)
    _change(mirrored.database, 101)
    mirrored.database.execute("SELECT pg_drop_replication_slot(%s)", [mirrored.slot])
    mirrored.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [mirrored.slot])
    _change(mirrored.database, 102)
    _assert_refused_then_repaired(mirrored)


def test_a_slot_that_was_dropped_while_a_run_is_active(mirrored: Mirrored) -> None:
    def dropped() -> bool:
        mirrored.database.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active",
            [mirrored.slot],
        )
        mirrored.database.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active",
            [mirrored.slot],
        )
        return not mirrored.database.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [mirrored.slot])

    with mirrored.running():
        mirrored.is_streaming(*TABLES)
        _change(mirrored.database, 101)
        mirrored.follows(*TABLES)
        wait_until(dropped, 30, "the slot is dropped")
        _change(mirrored.database, 102)
        for name in TABLES:
            assert mirrored.slot in f"{mirrored.fails(name).error}"
        mirrored.resync()
        mirrored.follows(*TABLES)
        _change(mirrored.database, 103)
        mirrored.follows(*TABLES)


@pytest.mark.slow
def test_the_command_line_says_in_two_lines_for_each_table_what_was_lost(project: Project, mirrored: Mirrored) -> None:
    mirrored.catches_up(*TABLES)
    mirrored.database.execute("SELECT pg_drop_replication_slot(%s)", [mirrored.slot])
    project.configure(mirrored.database.dsn)
    ended = project.run("run", "--once")
    assert ended.code == 1, ended.all
    pairs = lines_of_error(ended.err)
    assert len(pairs) == len(TABLES), ended.err
    for (error, remedy), name in zip(pairs, sorted(TABLES), strict=True):
        assert name in error and mirrored.slot in error and "were not captured" in error
        assert "wal2lake tables resync --all" in remedy
    asked = project.run("tables", "resync", "--all")
    assert asked.code == 0, asked.all
    mirrored.catches_up(*TABLES)


def test_a_slot_of_that_name_that_was_there_before_is_left_alone(mirrored: Mirrored) -> None:
    mirrored.database.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [mirrored.slot])
    before = mirrored.confirmed()
    for _ in range(2):
        with pytest.raises(SlotLost) as refused:
            mirrored.once()
        assert "exists already" in str(refused.value)
        assert mirrored.confirmed() == before
    statement = refused.value.remedy.partition(": ")[2]
    mirrored.database.execute(statement)
    mirrored.catches_up(*TABLES)


@pytest.fixture
def stingy_server() -> Iterator[EmbeddedServer]:
    """A server that keeps little WAL for a slot."""
    directory = Path(tempfile.mkdtemp(prefix="wal2lake-stingy-"))
    directory.chmod(0o711)
    try:
        with EmbeddedServer(
            directory / "postgres", max_slot_wal_keep_size="16MB", min_wal_size="32MB", max_wal_size="32MB"
        ) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.slow
def test_a_slot_that_was_invalidated(stingy_server: EmbeddedServer, tmp_path: Path, spark: SparkSession) -> None:
    with fresh_database(stingy_server) as database:
        _make(database)
        mirrored = Mirrored(database, tmp_path / "lake", spark)
        mirrored.catches_up(*TABLES)
        _change(database, 101)

        def invalidated() -> bool:
            database.execute("CREATE TABLE IF NOT EXISTS unlisted (v text); DROP TABLE unlisted")
            database.execute("SELECT pg_switch_wal()")
            database.execute("CHECKPOINT")
            status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
            return bool(database.value(status, [mirrored.slot]) == "lost")

        wait_until(invalidated, 60, "the slot is invalidated")
        _assert_refused_then_repaired(mirrored)


@pytest.mark.slow
@heals("ChangeLogDamaged")
def test_a_damaged_record_of_what_was_acknowledged_is_made_again_or_leads_to_a_resync(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up("t")
    acknowledged = mirrored.changelog / "acknowledged.json"
    acknowledged.write_text('{"ls')
    # The state store may be a moment behind; here it has the last acknowledged position.
    database.execute(
        "UPDATE wal2lake.groups SET logged_lsn = confirmed_flush_lsn FROM pg_replication_slots s WHERE s.slot_name = slot"
    )
    database.execute("INSERT INTO t VALUES (2)")
    mirrored.catches_up("t")
    acknowledged.write_text('{"ls')
    # Nobody else knows how far the slot was read by us, either.
    (mirrored.changelog / "stored.json").unlink(missing_ok=True)
    database.execute("UPDATE wal2lake.groups SET logged_lsn = NULL")
    database.rows(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn()) FROM pg_logical_emit_message(false, 'x', '')",
        [mirrored.slot],
    )
    database.execute("INSERT INTO t VALUES (3)")
    (table,) = mirrored.once().missed
    assert "acknowledged.json can't be read" in str(table.error)
    assert "wal2lake tables resync --all" in str(table.remedy)
    mirrored.resync()
    mirrored.catches_up("t")
