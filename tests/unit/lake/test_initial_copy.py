"""Ranges, fetch sizes, directories: decisions before a copy reads rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.lake.copying.initial_copy import fetch_size, for_jdbc, init_statement, range_size, ranges, tasks
from wal2lake.lake.iceberg.runtime import RUNTIME
from wal2lake.lake.names import directory, literal, quoted
from wal2lake.lake.spark.settings import driver_settings
from wal2lake.schema import TableId


@pytest.mark.parametrize("pages", [0, 1, 8192])
def test_small_heap_is_one_open_range(pages: int) -> None:
    assert ranges(pages, 8192) == ["pos >= '(0,0)'::tid"]


def test_ranges_follow_each_other_and_the_last_is_open() -> None:
    assert ranges(25, 10) == [
        "pos >= '(0,0)'::tid AND pos < '(10,0)'::tid",
        "pos >= '(10,0)'::tid AND pos < '(20,0)'::tid",
        "pos >= '(20,0)'::tid",
    ]


@pytest.mark.parametrize(
    ("pages", "cores", "size"), [(0, 2, 512), (100, 2, 512), (22_400, 2, 2800), (1_000_000, 2, 8192), (22_400, 16, 512)]
)
def test_ranges_are_64_mb_of_a_large_table_and_several_per_core_of_a_small_one(
    pages: int, cores: int, size: int
) -> None:
    assert range_size(pages, cores) == size


def test_fetch_size_is_bounded_by_memory_and_never_zero() -> None:
    assert fetch_size(1) == 50_000
    assert fetch_size(10_000_000) == 100
    assert fetch_size(1024) == 16384


def test_tasks_keep_the_cores_busy_and_files_large() -> None:
    assert tasks(pages=80_000, count=10, cores=2) == 8
    assert tasks(pages=8192 * 1600, count=1600, cores=2) == 200
    assert tasks(pages=0, count=1, cores=2) == 1


def test_an_operator_with_a_question_mark_is_no_parameter_to_the_driver() -> None:
    assert for_jdbc("""j ? 'a?''?' AND "c?" = 1""") == """j ?? 'a?''?' AND "c?" = 1"""


def test_snapshot_name_is_quoted() -> None:
    assert "SNAPSHOT '0000''x'" in init_statement("0000'x")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (TableId("public", "orders"), "public/orders"),
        (TableId("Sales.EU", "Order_1"), "Sales.EU/Order_1"),
        (TableId("public", "a b/c"), "public/a~20b~2fc"),
        (TableId("public", ".."), "public/~2e."),
        (TableId("_wal2lake", "x"), "~5fwal2lake/x"),
        (TableId("catalog.db", "x"), "~63atalog.db/x"),
        (TableId("public", "ö~"), "public/~c3~b6~7e"),
    ],
)
def test_directory_is_safe_for_every_reader(table: TableId, expected: str) -> None:
    assert directory(Path("/lake"), table, "1a2b3c4d") == Path("/lake") / f"{expected}-1a2b3c4d"


def test_spark_names_and_texts_are_quoted() -> None:
    assert quoted("a`b") == "`a``b`"
    assert literal("it's \\n") == "'it\\'s \\\\n'"


def test_users_jars_classes_and_extensions_are_kept() -> None:
    given = {
        "spark.jars": "mine.jar", "spark.driver.extraClassPath": "/mine", "spark.sql.extensions": "my.Extension",
        "spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dx=1",
    }  # fmt: skip
    local = driver_settings("local[2]", given, RUNTIME, [Path("/c/a.jar")])
    assert local["spark.driver.extraClassPath"] == "/mine:/c/a.jar"
    assert local["spark.jars"] == "mine.jar"
    assert local["spark.sql.extensions"].startswith("my.Extension,org.apache.iceberg")
    assert local["spark.ui.enabled"] == "true"
    assert local["spark.driver.extraJavaOptions"].endswith(" -Dx=1")
    assert local["spark.master"] == "local[2,3]"
    assert driver_settings("local[*,1]", given, RUNTIME, [])["spark.master"] == "local[*,1]"
    cluster = driver_settings("spark://host:7077", given, RUNTIME, [Path("/c/a.jar")])
    assert cluster["spark.master"] == "spark://host:7077"
    assert cluster["spark.jars"] == "mine.jar,/c/a.jar"


def test_a_garbage_collector_is_chosen_only_where_the_user_has_chosen_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that is given two does not start."""
    for variable in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(variable, raising=False)

    def chosen(given: dict[str, str]) -> bool:
        return "UseParallelGC" in driver_settings("local[2]", given, RUNTIME, [])["spark.driver.extraJavaOptions"]

    assert chosen({})
    for setting in ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"):
        assert not chosen({setting: "-XX:+UseZGC"})
    for variable in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        with monkeypatch.context() as context:
            context.setenv(variable, "-Xss1m -XX:+UseSerialGC")
            assert not chosen({})
