"""Awkward shapes of identity and membership through a whole mirror: exact, or refused with a remedy that works.

    make hostile-test [SEEDS=5] [SEED=]

WAL2LAKE_TEST_SEED repeats a seed, WAL2LAKE_TEST_SHAPES=float8_key,hash runs these shapes alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hostile import Hostile
from shapes import Shape
from shapes_of_keys import KEYS
from shapes_of_partitions import PARTITIONS
from shapes_of_tables import TABLES

from proof_size import SHORT, proof_size
from remedies import heals
from servers import Database, fresh_database
from wal2lake.demo.server import EmbeddedServer
from wal2lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPES = (*KEYS, *PARTITIONS, *TABLES)
SEED = int(os.environ.get("WAL2LAKE_TEST_SEED") or random.randrange(10**6))
SEEDS = proof_size("WAL2LAKE_TEST_SEEDS", long=5, short=1)
ROUNDS = 2
SECONDS_A_SEED = 900


def _chosen(wanted: Callable[[Shape], bool]) -> list[Shape]:
    named = os.environ.get("WAL2LAKE_TEST_SHAPES")
    return [shape for shape in SHAPES if (shape.name in named.split(",") if named else wanted(shape))]


def _drawn(seed: int, shape: Shape) -> bool:
    """The short form has a third of the shapes that the quick test does not have, by the seed."""
    return not SHORT or not (shape.quick or random.Random(f"{seed} {shape.name}").randrange(3))


def test_there_are_at_least_forty_shapes_and_each_has_a_name_of_its_own() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    assert sum(shape.quick for shape in SHAPES) >= 40


@heals("then: wal2lake tables resync …; or …")
@pytest.mark.timeout(600)
def test_awkward_shapes_are_exact_or_refused_with_a_remedy_that_works(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - shown when it fails
    Hostile(database, tmp_path, spark, _chosen(lambda shape: shape.quick), SEED).run()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_A_SEED * SEEDS)
def test_every_shape_with_many_seeds(server: EmbeddedServer, tmp_path: Path, spark: SparkSession) -> None:
    for seed in range(SEED, SEED + SEEDS):
        print(f"seed {seed}", flush=True)  # noqa: T201 - for who watches
        with fresh_database(server) as database:
            directory = tmp_path / str(seed)
            directory.mkdir()
            Hostile(database, directory, spark, _chosen(partial(_drawn, seed)), seed).run(ROUNDS)


STILL = ("SELECT 1",)
ALTERED = {
    Shape("floats", ("CREATE TABLE t (k int PRIMARY KEY, v float8); INSERT INTO t VALUES (1, 0), (2, 'NaN')",), STILL):
        "UPDATE lake.floats.t SET v = -0.0D WHERE k = 1",
    Shape("blanks", ("CREATE TABLE t (k char(4) PRIMARY KEY); INSERT INTO t VALUES ('a')",), STILL):
        "UPDATE lake.blanks.t SET k = 'a'",
    Shape("nulls", ("CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, NULL)",), STILL):
        "UPDATE lake.nulls.t SET v = ''",
    Shape("copies", ("CREATE TABLE t (k int); ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1), (1)",), STILL):
        "INSERT INTO lake.copies.t VALUES (1)",
    Shape("missing", ("CREATE TABLE t (k int PRIMARY KEY); INSERT INTO t VALUES (1), (2)",), STILL):
        "DELETE FROM lake.missing.t WHERE k = 2",
}  # fmt: skip
"""shapes, each with a change of its lake table that the comparison must not overlook"""


def test_the_comparison_fails_where_a_lake_row_is_altered(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    hostile = Hostile(database, tmp_path, spark, ALTERED, SEED)
    hostile.copy()
    assert [verdict.difference for verdict in hostile.verdicts()] == [None] * len(ALTERED)
    lake = Lake(hostile.mirrored.config, spark)
    lake.start()
    try:
        with lake._spark.driver.session("somebody else") as session:
            for statement in ALTERED.values():
                session.sql(statement)
    finally:
        lake.stop()
    assert [str(verdict.table) for verdict in hostile.verdicts() if verdict.difference is None] == []
