"""Renamed tables: a lake table has the name of its source table."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from mirroring import Mirrored, missed

from servers import Database
from wal2lake.demo.compare import open_catalog
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = {"name": "default", "flush_interval": 0.1}
CREATE = (
    "CREATE TABLE {0} (id int PRIMARY KEY DEFAULT nextval('ids'), v text DEFAULT '{0}'); INSERT INTO {0} DEFAULT VALUES"
)
NAMES = ("t", "orders", "orders_new", "a", "b", "x", "y", "z", "nightly", "nightly_new")
PATTERNS = {
    "renamed and another made": "ALTER TABLE t RENAME TO t_old; " + CREATE.format("t"),
    "blue and green": "ALTER TABLE orders RENAME TO orders_old; ALTER TABLE orders_new RENAME TO orders",
    "swapped": "ALTER TABLE a RENAME TO c; ALTER TABLE b RENAME TO a; ALTER TABLE c RENAME TO b",
    "rotated": "ALTER TABLE x RENAME TO w; ALTER TABLE z RENAME TO x; ALTER TABLE y RENAME TO z; ALTER TABLE w RENAME TO y",
    "dropped and replaced": "DROP TABLE nightly; ALTER TABLE nightly_new RENAME TO nightly",
}
AFTER = ("t", "t_old", "orders", "orders_old", "a", "b", "x", "y", "z", "nightly")


@pytest.fixture
def mirrored(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute("CREATE SEQUENCE ids")
    return Mirrored(database, tmp_path / "lake", spark, groups=[GROUP])


def _make(database: Database, *names: str) -> None:
    for name in names:
        database.execute(CREATE.format(name))


def _lake_tables(lake: Path) -> set[str]:
    with open_catalog(lake) as catalog:
        return {".".join(name) for space in catalog.list_namespaces() for name in catalog.list_tables(space)}


@contextmanager
def _writing(database: Database, names: Sequence[str]) -> Iterator[None]:
    """Somebody writes to tables by their names, whichever tables have them."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            while not stop.wait(0.02):
                for name in names:
                    connection.execute(f"INSERT INTO {name} DEFAULT VALUES".encode())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def test_lake_tables_follow_the_names_of_their_tables_under_load(mirrored: Mirrored) -> None:
    _make(mirrored.database, *NAMES)
    with mirrored.running():
        mirrored.is_streaming(*NAMES)
        with _writing(mirrored.database, ["t", "orders", "a", "b", "x", "y", "z"]):
            for statements in PATTERNS.values():
                mirrored.database.execute(statements)
        mirrored.becomes_equal(*AFTER)
        mirrored.database.execute("; ".join(f"INSERT INTO {name} DEFAULT VALUES" for name in AFTER))
        mirrored.follows(*AFTER)
    assert _lake_tables(mirrored.lake) == {f"public.{name}" for name in AFTER}


def test_lake_tables_follow_the_names_that_changed_while_nothing_ran(mirrored: Mirrored) -> None:
    _make(mirrored.database, *NAMES)
    mirrored.catches_up(*NAMES)
    for statements in PATTERNS.values():
        mirrored.database.execute(statements)
    mirrored.database.execute("; ".join(f"INSERT INTO {name} DEFAULT VALUES" for name in AFTER))
    mirrored.catches_up(*AFTER)
    assert _lake_tables(mirrored.lake) == {f"public.{name}" for name in AFTER}


@pytest.mark.parametrize(
    "steps",
    [
        [("a", "aside a")],
        [("a", "aside a"), ("b", "aside b")],
        [("a", "aside a"), ("b", "aside b"), ("aside b", "a")],
        [("a", "aside a"), ("b", "aside b"), ("aside b", "a"), ("aside a", "b")],
    ],
    ids=["one aside", "both aside", "one renamed", "both renamed"],
)
def test_a_swap_that_was_cut_off_goes_on(mirrored: Mirrored, steps: list[tuple[str, str]]) -> None:
    """A crash after a rename in the lake: neither the state store nor the table's own description know of it."""
    _make(mirrored.database, "a", "b")
    mirrored.catches_up("a", "b")
    oids = {name: mirrored.database.value(f"SELECT '{name}'::regclass::oid") for name in "ab"}
    mirrored.database.execute(PATTERNS["swapped"])
    mirrored.database.execute("INSERT INTO a DEFAULT VALUES; INSERT INTO b DEFAULT VALUES")
    place = {"a": "a", "b": "b"} | {f"aside {name}": f"wal2lake_moving_{oid}" for name, oid in oids.items()}
    with open_catalog(mirrored.lake) as catalog:
        for old, new in steps:
            catalog.rename_table(("public", place[old]), ("public", place[new]))
    mirrored.catches_up("a", "b")
    assert _lake_tables(mirrored.lake) == {"public.a", "public.b"}


@pytest.mark.slow
def test_a_paused_table_gives_up_its_name(mirrored: Mirrored) -> None:
    _make(mirrored.database, "t")
    mirrored.catches_up("t")
    Mirror(mirrored.config).pause(["public.t"])
    mirrored.database.execute("INSERT INTO t DEFAULT VALUES")
    mirrored.database.execute(PATTERNS["renamed and another made"])
    mirrored.catches_up("t")
    Mirror(mirrored.config).resume(["public.t_old"])
    mirrored.catches_up("t", "t_old")


@pytest.mark.slow
def test_a_table_named_without_a_pattern_is_replaced_night_after_night(mirrored: Mirrored) -> None:
    mirrored.configure(groups=[GROUP | {"tables": ["public.t"]}])
    _make(mirrored.database, "t", "t_old")
    mirrored.catches_up("t")
    for _ in range(3):
        _make(mirrored.database, "t_new")
        mirrored.database.execute("DROP TABLE t_old; ALTER TABLE t RENAME TO t_old; ALTER TABLE t_new RENAME TO t")
        mirrored.catches_up("t")
    assert _lake_tables(mirrored.lake) == {"public.t", "public.t_old"}


@pytest.mark.slow
def test_a_name_that_a_lake_table_is_to_keep_is_asked_about(mirrored: Mirrored) -> None:
    mirrored.configure(groups=[GROUP | {"on_rename": "keep"}])
    _make(mirrored.database, "t")
    mirrored.catches_up("t")
    mirrored.database.execute(PATTERNS["renamed and another made"])
    asked = missed(mirrored.once())
    assert list(asked) == ["t"]
    assert "belongs to source table public.t_old" in str(asked["t"].error)
    assert "[tables.'public.t'] target = " in str(asked["t"].remedy)
    mirrored.configure(tables={"public.t": {"target": "public.t_new"}})
    assert not mirrored.once().missed
    with open_catalog(mirrored.lake) as catalog:
        assert catalog.load_table(("public", "t_new")).scan().to_arrow()["v"].to_pylist() == ["t"]
    mirrored.configure(tables={}, groups=[GROUP | {"on_rename": "rename"}])
    mirrored.catches_up("t", "t_old")
    assert _lake_tables(mirrored.lake) == {"public.t", "public.t_old"}


def test_a_table_goes_to_another_schema(mirrored: Mirrored) -> None:
    mirrored.configure(groups=[GROUP | {"tables": ["*.*"]}])
    _make(mirrored.database, "t")
    mirrored.catches_up("t")
    mirrored.database.execute("CREATE SCHEMA archive; ALTER TABLE t SET SCHEMA archive; " + CREATE.format("t"))
    mirrored.catches_up("archive.t", "t")
