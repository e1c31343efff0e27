"""Everything through PgBouncer in transaction mode: copies, the polled slot, the state store, and its restart."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from mirroring import Mirrored

import pooler as poolers
from pooler import Pooler
from servers import Database
from wal2lake.errors import GroupHeld
from wal2lake.mirror import Mirror
from wal2lake.source import connect
from wal2lake.state import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = poolers.needed


@pytest.fixture
def pooler(database: Database) -> Iterator[Pooler]:
    with poolers.pooled(database) as made:
        yield made


@pytest.fixture
def mirrored(database: Database, pooler: Pooler, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, d date, f float8, b bytea, i interval, m money, z timestamptz)"
    )
    database.execute(
        "INSERT INTO t SELECT i, repeat('x', i), date '2024-01-31' + i, 0.1 * i, '\\x00ff', interval '1 day', 1.5, now()"
        " FROM generate_series(1, 2000) i"
    )
    # What a session has by itself must not reach a value.
    name = database.name
    for setting in ("DateStyle = 'German, DMY'", "IntervalStyle = 'iso_8601'", "extra_float_digits = 0",
                    "bytea_output = 'escape'", "TimeZone = 'Asia/Tokyo'"):  # fmt: skip
        database.execute(f'ALTER DATABASE "{name}" SET {setting}')
    # Its sessions with the server are older than that.
    pooler.kill()
    pooler.start()
    return Mirrored(
        database, tmp_path / "lake", spark, source={"dsn": pooler.dsn, "pooler": True, "poll_interval": 0.05},
        groups=[{"name": "default", "flush_interval": 0.1, "capture": "poll"}],
    )  # fmt: skip


def test_tables_are_copied_and_followed(mirrored: Mirrored) -> None:
    mirrored.catches_up("t")
    mirrored.database.execute(
        "BEGIN; UPDATE t SET d = d + 1, f = f / 3, z = now() WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0;"
        " INSERT INTO t SELECT i, NULL, '2024-03-02', 1e-300, '\\x01', '-1 mon', -2, now()"
        " FROM generate_series(3001, 3500) i; COMMIT"
    )
    mirrored.catches_up("t")
    (table,) = Mirror(mirrored.config).tables()
    assert (table.mode, table.state) == ("POLL", "STREAMING")


def test_it_goes_on_after_the_pooler_was_killed(mirrored: Mirrored, pooler: Pooler) -> None:
    mirrored.catches_up("t")
    rng, stop = random.Random(1), threading.Event()

    def write() -> None:
        with psycopg.connect(mirrored.database.dsn, autocommit=True) as connection:
            while not stop.wait(0.01):
                connection.execute("UPDATE t SET f = %s WHERE id = %s", [rng.random(), rng.randrange(1, 2000)])

    writer = threading.Thread(target=write)
    with mirrored.running():
        writer.start()
        try:
            for _ in range(2):
                mirrored.slot_passes(mirrored.now(), 90)
                pooler.kill()
                pooler.start()
        finally:
            stop.set()
            writer.join()
        mirrored.becomes_equal("t")


def test_no_session_is_relied_on(mirrored: Mirrored, pooler: Pooler) -> None:
    with connect(mirrored.config.source) as connection:
        settings = connection.execute("SELECT current_setting('DateStyle'), current_setting('search_path')").fetchone()
        assert settings == ("ISO, MDY", "pg_catalog")
        for number in range(10):
            assert connection.execute("SELECT %s::int", [number]).fetchone() == (number,)
    prepared = mirrored.database.value("SELECT count(*) FROM pg_prepared_statements")
    assert prepared == 0
    with psycopg.connect(pooler.dsn, autocommit=True) as another:
        row = another.execute("SELECT current_setting('bytea_output'), current_setting('search_path')").fetchone()
        assert row == ("escape", '"$user", public'), "settings of ours were left in a server's session"


def test_a_group_has_one_run(mirrored: Mirrored) -> None:
    with closing(open_store(mirrored.config, None)) as store, closing(open_store(mirrored.config, None)) as other:
        store.create()
        lease, second = store.lease("default"), other.lease("default")
        lease.take()
        with pytest.raises(GroupHeld):
            second.take()
        # One that connects to the server itself is refused, too.
        mirrored.configure(source={"dsn": mirrored.database.dsn, "pooler": False})
        with closing(open_store(mirrored.config, None)) as direct, pytest.raises(GroupHeld):
            direct.lease("default").take()
        lease.release()
        second.take()
        second.release()
