"""The snippets of docs/reading.md read the lake when they are pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conftest import ConfigFactory
from servers import Database
from wal2lake.lake.iceberg.runtime import ICEBERG, SQLITE
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"


def block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return str(found)


@pytest.fixture
def lake(database: Database, config: ConfigFactory, spark: SparkSession) -> Path:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, item text); INSERT INTO orders VALUES (1, 'tea')")
    made = config()
    assert not Mirror(made, spark).run_once().missed
    return made.lake_path


def test_the_lines_without_spark_read_the_lake_from_any_directory(lake: Path, tmp_path: Path) -> None:
    lines = block("python", "SqlCatalog").replace("/data/lake", str(lake)) + "\nprint(rows.to_pylist())"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shown = subprocess.run([sys.executable, "-c", lines], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert shown.stdout.strip() == "[{'id': 1, 'item': 'tea'}]", shown.stderr


def test_the_settings_for_spark_read_the_lake(lake: Path, spark: SparkSession) -> None:
    lines = block("properties", "spark.sql.catalog.lake").replace("/data/lake", str(lake)).splitlines()
    settings = dict(line.split(maxsplit=1) for line in lines)
    assert settings.pop("spark.jars.packages") == f"{ICEBERG.coordinate},{SQLITE.coordinate}"
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    assert [tuple(row) for row in session.table("lake.public.orders").collect()] == [(1, "tea")]
