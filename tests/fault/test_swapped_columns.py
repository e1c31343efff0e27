"""Columns of partitioned tables that swap their names after rows were changed and before the changes are decoded.

The catalog then has the same names and types in another order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mirroring import Mirrored

from servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYED = "CREATE TABLE {t} (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
KEYLESS = "CREATE TABLE {t} (id int, n int) PARTITION BY RANGE (id);"
PARTS = (
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (10) TO (20);"
)
OTHER_ORDER = (
    "CREATE TABLE {t}_1 (n int, id int NOT NULL); CREATE TABLE {t}_2 (n int, gone int, id int NOT NULL);"
    "ALTER TABLE {t}_2 DROP gone;"
    "ALTER TABLE {t} ATTACH PARTITION {t}_1 FOR VALUES FROM (0) TO (10);"
    "ALTER TABLE {t} ATTACH PARTITION {t}_2 FOR VALUES FROM (10) TO (20);"
)
FULL = "ALTER TABLE {t}_1 REPLICA IDENTITY FULL; ALTER TABLE {t}_2 REPLICA IDENTITY FULL;"
ROWS = "INSERT INTO {t} SELECT i, 19 - i FROM generate_series(0, 19) i;"
SWAP = "ALTER TABLE {t} RENAME id TO x; ALTER TABLE {t} RENAME n TO id; ALTER TABLE {t} RENAME x TO n"
WRITE = "DELETE FROM {t} WHERE id IN (3, 13); INSERT INTO {t} VALUES (3, 100), (13, 200); UPDATE {t} SET n = 300 WHERE id = 5"

TABLES = {
    "keyed": KEYED + PARTS + ROWS,
    "keyless": KEYLESS + PARTS + FULL + ROWS,
    "ordered": KEYED + OTHER_ORDER + ROWS,
}
STEPS = {
    "emptied": ["TRUNCATE {t}_1", SWAP],
    "emptied_widened": ["TRUNCATE {t}_1", f"{SWAP}; ALTER TABLE {{t}} ADD z int"],
    "emptied_twice": ["TRUNCATE {t}_1; INSERT INTO {t} VALUES (4, 15)", "TRUNCATE {t}_1", SWAP, "INSERT INTO {t} VALUES (7, 70)"],
    "written": [WRITE, SWAP],
    "written_widened": [WRITE, f"{SWAP}; ALTER TABLE {{t}} ADD z int"],
    "dropped_and_added": [WRITE, "ALTER TABLE {t} DROP n; ALTER TABLE {t} ADD n int", "INSERT INTO {t} VALUES (8, 80) ON CONFLICT DO NOTHING"],
    "partition_dropped": [WRITE, SWAP, "DROP TABLE {t}_1"],
    "written_on_both_sides": [WRITE, SWAP, "UPDATE {t} SET id = 400 WHERE n = 6"],
}  # fmt: skip


def test_changes_before_the_swap_keep_their_columns(database: Database, tmp_path: Path, spark: SparkSession) -> None:
    cases = {f"{table}_{steps}": (TABLES[table], STEPS[steps]) for table in TABLES for steps in STEPS}
    for name, (made, _) in cases.items():
        database.execute(made.replace("{t}", name))
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up(*cases)
    for name, (_, steps) in cases.items():
        for statements in steps:
            database.execute(statements.replace("{t}", name))
    mirrored.catches_up(*cases)
