"""Partitions that are attached and detached without their rows in the WAL: the root's lake table equals the root."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import PATIENCE, Mirrored, missed

from servers import Database, fresh_database
from wal2lake.demo.server import EmbeddedServer
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYED = "CREATE TABLE {t} (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
KEYLESS = "CREATE TABLE {t} (id int, n int) PARTITION BY RANGE (id);"
LEAVES = (
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (20);"
)
FULL = "ALTER TABLE {t}_1 REPLICA IDENTITY FULL; ALTER TABLE {t}_2 REPLICA IDENTITY FULL;"
ROWS = "INSERT INTO {t} SELECT i, i FROM generate_series(0, 19) i;"
MIDDLE = (
    "CREATE TABLE {t}_0 PARTITION OF {t} FOR VALUES FROM (-10) TO (0);"
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);"
    "CREATE TABLE {t}_21 PARTITION OF {t}_2 FOR VALUES FROM (10) TO (15);"
    "CREATE TABLE {t}_22 PARTITION OF {t}_2 FOR VALUES FROM (15) TO (20);"
)
DEFAULT = "CREATE TABLE {t}_rest PARTITION OF {t} DEFAULT; INSERT INTO {t} SELECT i, i FROM generate_series(20, 40) i;"
DETACH, ATTACH = (
    "ALTER TABLE {t} DETACH PARTITION {t}_1",
    "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (0) TO (10)",
)
CHANGES = "UPDATE {t}_1 SET n = -n; DELETE FROM {t}_1 WHERE id = 3; INSERT INTO {t}_1 VALUES (3, 33)"
LOAD = (
    "CREATE TABLE {t}_3 (id int NOT NULL, n int); INSERT INTO {t}_3 SELECT i, i FROM generate_series(20, 29) i;"
    "ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES FROM (20) TO (30)"
)

# Each case: the table, and what is done to it, each statement (or block of them) in its own transaction.
CASES: dict[str, tuple[str, list[str]]] = {
    "loaded_and_attached_at_once": (KEYLESS + LEAVES + FULL + ROWS, [LOAD.replace(" NOT NULL", ""), "ALTER TABLE {t}_3 REPLICA IDENTITY FULL"]),
    "loaded_and_attached_with_key": (KEYED + LEAVES + ROWS, [LOAD]),
    "attached_with_rows_later": (KEYED + LEAVES + ROWS, LOAD.split("; ")),
    "attached_to_a_table_without_partitions": (KEYED, [LOAD]),
    "attached_empty": (
        KEYED + LEAVES + ROWS,
        ["CREATE TABLE {t}_3 (LIKE {t}); ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES FROM (20) TO (30)",
         "INSERT INTO {t} VALUES (25, 1)"],
    ),
    "changed_while_detached": (KEYED + LEAVES + ROWS, [f"{DETACH}; {CHANGES}; {ATTACH}"]),
    "changed_while_detached_later": (KEYLESS + LEAVES + FULL + ROWS, [DETACH, CHANGES, ATTACH]),
    "rewritten_while_detached": (
        KEYED + LEAVES + ROWS,
        [DETACH, "ALTER TABLE {t}_1 ALTER n TYPE int USING n * 10", "VACUUM FULL {t}_1", ATTACH],
    ),
    "changed_while_unlogged": (
        KEYED + LEAVES + ROWS,
        ["ALTER TABLE {t}_1 SET UNLOGGED", CHANGES, "ALTER TABLE {t}_1 SET LOGGED"],
    ),
    "changed_while_unlogged_at_once": (
        KEYED + LEAVES + ROWS,
        [f"ALTER TABLE {{t}}_1 SET UNLOGGED; {CHANGES}; ALTER TABLE {{t}}_1 SET LOGGED"],
    ),
    "level_changed_while_detached": (
        KEYED + MIDDLE + ROWS,
        ["ALTER TABLE {t} DETACH PARTITION {t}_2; UPDATE {t}_2 SET n = -n;"
         "ALTER TABLE {t} ATTACH PARTITION {t}_2 FOR VALUES FROM (10) TO (20)"],
    ),
    "level_attached_with_rows": (
        KEYED + MIDDLE + ROWS,
        ["CREATE TABLE {t}_3 (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
         "CREATE TABLE {t}_31 PARTITION OF {t}_3 FOR VALUES FROM (20) TO (30);"
         "INSERT INTO {t}_3 VALUES (20, 1), (21, 2);"
         "ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES FROM (20) TO (30)"],
    ),
    "leaf_of_level_changed_while_detached": (
        KEYED + MIDDLE + ROWS,
        ["ALTER TABLE {t}_2 DETACH PARTITION {t}_21; UPDATE {t}_21 SET n = -n;"
         "ALTER TABLE {t}_2 ATTACH PARTITION {t}_21 FOR VALUES FROM (10) TO (15)"],
    ),
    "dropped_and_made_by_the_same_name": (
        KEYED + LEAVES + ROWS,
        ["DROP TABLE {t}_1; CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10); INSERT INTO {t} VALUES (5, 55)"],
    ),
    "another_with_the_same_bounds": (
        KEYED + LEAVES + ROWS,
        [DETACH, "CREATE TABLE {t}_n PARTITION OF {t} FOR VALUES FROM (0) TO (10)", "INSERT INTO {t} VALUES (5, 55)",
         "UPDATE {t}_1 SET n = -1"],
    ),
    "detached_concurrently": (
        KEYED + LEAVES + ROWS,
        ["ALTER TABLE {t} DETACH PARTITION {t}_1 CONCURRENTLY", "UPDATE {t}_1 SET n = -1"],
    ),
    "dropped": (KEYED + LEAVES + ROWS, ["DROP TABLE {t}_1", "INSERT INTO {t} VALUES (10, 1) ON CONFLICT DO NOTHING"]),
    "truncated": (KEYED + LEAVES + ROWS, ["TRUNCATE {t}_1", "INSERT INTO {t} VALUES (4, 44)"]),
    "vacuumed": (KEYED + LEAVES + ROWS, ["VACUUM FULL {t}_1", "UPDATE {t} SET n = -n"]),
    "list": (
        "CREATE TABLE {t} (id int, kind text, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);"
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES IN ('a', 'A'); CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES IN ('b');"
        "INSERT INTO {t} SELECT i, k FROM generate_series(1, 5) i, unnest(ARRAY['a', 'A', 'b']) k;",
        ["CREATE TABLE {t}_3 (LIKE {t}); INSERT INTO {t}_3 VALUES (1, 'it''s'), (2, 'it''s');"
         "ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES IN ('it''s')",
         "ALTER TABLE {t} DETACH PARTITION {t}_1"],
    ),
    "list_of_a_nondeterministic_collation": (
        # Only ICU has such collations, and the embedded server is built without it: one is declared to be like that.
        "CREATE COLLATION blind FROM \"C\"; UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'blind';"
        "CREATE TABLE {t} (id int, kind text COLLATE blind) PARTITION BY LIST (kind);"
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES IN ('a'); CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES IN ('b');"
        "ALTER TABLE {t}_1 REPLICA IDENTITY FULL; ALTER TABLE {t}_2 REPLICA IDENTITY FULL;"
        "INSERT INTO {t} SELECT i, k FROM generate_series(1, 5) i, unnest(ARRAY['a', 'b']) k;",
        ["ALTER TABLE {t} DETACH PARTITION {t}_1"],
    ),
    "hash": (
        "CREATE TABLE {t} (id int PRIMARY KEY, n int) PARTITION BY HASH (id);"
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES WITH (MODULUS 2, REMAINDER 1);" + ROWS,
        ["ALTER TABLE {t} DETACH PARTITION {t}_1; UPDATE {t}_1 SET n = -n;"
         "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES WITH (MODULUS 2, REMAINDER 0)"],
    ),
    "days": (
        "CREATE TABLE {t} (at timestamptz, day date, n int, PRIMARY KEY (at, day)) PARTITION BY RANGE (at, day);"
        "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (MINVALUE, MINVALUE) TO ('2024-02-01 00:00+02', '2024-01-15');"
        "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM ('2024-02-01 00:00+02', '2024-01-15') TO (MAXVALUE, MAXVALUE);"
        "INSERT INTO {t} SELECT d, d, 1 FROM generate_series('2024-01-01'::timestamptz, '2024-03-01', '1 hour') d;",
        ["INSERT INTO {t} VALUES ('2024-01-31 22:00+00', '2024-01-14', 2), ('2024-01-31 22:00+00', '2024-01-16', 3)",
         "DROP TABLE {t}_1"],
    ),
    "bounds_in_a_column_with_another_name": (
        KEYED + LEAVES + ROWS,
        ["ALTER TABLE {t} RENAME id TO x; ALTER TABLE {t} RENAME n TO id; ALTER TABLE {t} RENAME x TO n",
         "ALTER TABLE {t} DETACH PARTITION {t}_1", "UPDATE {t} SET id = 7 WHERE n = 12"],
    ),
    "another_attached_with_other_bounds": (
        KEYED + LEAVES + ROWS,
        [DETACH + "; CREATE TABLE {t}_n (id int PRIMARY KEY, n int); INSERT INTO {t}_n VALUES (-5, 1), (4, 44), (5, 55);"
         "ALTER TABLE {t} ATTACH PARTITION {t}_n FOR VALUES FROM (-10) TO (7)",
         "CREATE TABLE {t}_m PARTITION OF {t} FOR VALUES FROM (7) TO (10)",
         "INSERT INTO {t} VALUES (8, 88); UPDATE {t} SET id = 9 WHERE id = 4; UPDATE {t} SET id = 3 WHERE id = 15"],
    ),
    "detached_beside_a_default": (
        KEYED + LEAVES + ROWS + DEFAULT,
        [DETACH, "INSERT INTO {t} VALUES (5, 55)"],
    ),
    "attached_beside_a_default": (
        KEYED + LEAVES + ROWS + "CREATE TABLE {t}_rest PARTITION OF {t} DEFAULT; INSERT INTO {t} VALUES (50, 1);",
        [LOAD, "UPDATE {t} SET n = -n WHERE id > 18"],
    ),
    "attached_again_beside_a_default": (
        KEYED + LEAVES + ROWS + DEFAULT,
        [DETACH, "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (-10) TO (10)", "INSERT INTO {t} VALUES (-5, 1)",
         DETACH, "DELETE FROM {t}_1 WHERE id < 0", ATTACH],
    ),
    "default_split": (
        KEYED + LEAVES + ROWS + DEFAULT,
        ["ALTER TABLE {t} DETACH PARTITION {t}_rest;"
         "CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (20) TO (30);"
         "WITH moved AS (DELETE FROM {t}_rest WHERE id < 30 RETURNING *) INSERT INTO {t} SELECT * FROM moved;"
         "ALTER TABLE {t} ATTACH PARTITION {t}_rest DEFAULT"],
    ),
}  # fmt: skip


RECOPIED = {
    "list_of_a_nondeterministic_collation", "hash", "detached_beside_a_default", "attached_again_beside_a_default",
    "default_split",
}  # fmt: skip
"""what bounds don't tell"""


class _Copies(logging.Handler):
    """Which tables were copied whole, and which in parts."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.whole: set[str] = set()
        self.parts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if match := re.fullmatch(r"copying public\.(\w+) at .*", text):
            self.whole.add(match[1])
        if match := re.fullmatch(r"public\.(\w+): copying \d+ partitions at .*", text):
            self.parts.add(match[1])


@contextmanager
def _copies() -> Iterator[_Copies]:
    noted, logger = _Copies(), logging.getLogger("wal2lake")
    before = logger.level
    logger.addHandler(noted)
    logger.setLevel(logging.INFO)
    try:
        yield noted
    finally:
        logger.removeHandler(noted)
        logger.setLevel(before)


def _create(database: Database, name: str) -> None:
    database.execute(CASES[name][0].replace("{t}", name))


def _move(database: Database, name: str) -> None:
    for statements in CASES[name][1]:
        database.execute(statements.replace("{t}", name))


@pytest.fixture(scope="module", params=["down", pytest.param("running", marks=pytest.mark.slow)])
def moved(
    request: pytest.FixtureRequest, server: EmbeddedServer, spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mirrored]:  # fmt: skip
    """The tables of all cases after what was done to them while nothing ran, or under a running mirror."""
    with fresh_database(server) as database:
        for name in CASES:
            _create(database, name)
        mirrored = Mirrored(database, tmp_path_factory.mktemp("moved") / "lake", spark)
        mirrored.catches_up(*CASES)
        if request.param == "down":
            for name in CASES:
                _move(database, name)
            with _copies() as copies:
                assert not mirrored.once().missed
            assert copies.whole & set(CASES) == RECOPIED
            assert copies.parts == set(CASES) - RECOPIED
            yield mirrored
            return
        with mirrored.running():
            mirrored.is_streaming()
            for name in CASES:
                _move(database, name)
            # Which table is not is for its own test to say.
            with suppress(AssertionError):
                mirrored.becomes_equal(*CASES, patience=2 * PATIENCE)
            yield mirrored


@pytest.mark.parametrize("name", CASES)
def test_the_root_is_equal_after_partitions_moved(moved: Mirrored, name: str) -> None:
    moved.equal(name)
    table = moved.table(name)
    assert table is not None
    assert (table.state, table.error) == ("STREAMING", None)


def _parted(database: Database, lake: Path, spark: SparkSession, shape: str = KEYED) -> Mirrored:
    database.execute((shape + LEAVES + FULL + ROWS).replace("{t}", "p"))
    mirrored = Mirrored(database, lake, spark)
    mirrored.catches_up("p")
    return mirrored


def test_a_partition_that_is_unlogged_stops_its_table_until_it_is_logged(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    mirrored = _parted(database, tmp_path / "lake", spark)
    database.execute("ALTER TABLE p_1 SET UNLOGGED; UPDATE p_1 SET n = -n; UPDATE p_2 SET n = -n")
    table = missed(mirrored.once())["p"]
    assert "partition public.p_1 is unlogged" in str(table.error)
    alter, command = str(table.remedy).split("; then: ")
    assert (alter, command) == ('ALTER TABLE "public"."p_1" SET LOGGED', "wal2lake tables resume 'public.p'")
    database.execute(alter)
    Mirror(mirrored.config).resume(["public.p"])
    mirrored.catches_up("p")
    database.execute("ALTER TABLE p_2 SET UNLOGGED")
    mirrored.resync("p")
    assert "partition public.p_2 is unlogged" in str(missed(mirrored.once())["p"].error)


def test_a_partition_that_vacuum_full_has_locked_delays_no_other_table(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """VACUUM FULL holds an ACCESS EXCLUSIVE lock for as long as it takes; so does this transaction."""
    mirrored = _parted(database, tmp_path / "lake", spark, KEYLESS)
    database.execute(
        "ALTER TABLE p DETACH PARTITION p_1; ALTER TABLE p ATTACH PARTITION p_1 FOR VALUES FROM (0) TO (10)"
    )
    database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    mirrored.catches_up("p", "other")
    locker = database.connect(autocommit=False)
    locker.execute("LOCK TABLE p_1 IN ACCESS EXCLUSIVE MODE")
    database.execute("INSERT INTO p_2 VALUES (11, 111); INSERT INTO other VALUES (1)")
    result = mirrored.once()
    assert not result.missed
    locker.rollback()
    mirrored.equal("p", "other")


def test_changes_of_rows_that_came_with_a_partition_wait_for_the_rows(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Whole rows are matched, and the lake has none of them when the first changes are read."""
    mirrored = _parted(database, tmp_path / "lake", spark, KEYLESS.replace("n int", "n int, big text"))
    database.execute(
        "CREATE TABLE p_3 (id int, n int, big text); ALTER TABLE p_3 REPLICA IDENTITY FULL;"
        "INSERT INTO p_3 SELECT i, i, 'x' FROM generate_series(20, 29) i;"
        "ALTER TABLE p ATTACH PARTITION p_3 FOR VALUES FROM (20) TO (30)"
    )
    database.execute("UPDATE p SET n = -n WHERE id > 15; DELETE FROM p WHERE id = 22")
    mirrored.catches_up("p")


def test_rows_of_a_partition_that_came_and_went_between_two_looks_are_gone(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    mirrored = _parted(database, tmp_path / "lake", spark)
    with mirrored.running():
        mirrored.is_streaming("p")
        database.execute("CREATE TABLE p_3 PARTITION OF p FOR VALUES FROM (20) TO (30)")
        database.execute("INSERT INTO p SELECT i, i FROM generate_series(20, 29) i")
        mirrored.follows("p")
        database.execute("DROP TABLE p_3; INSERT INTO p VALUES (10, 1) ON CONFLICT DO NOTHING")
        mirrored.becomes_equal("p")
