"""`import wal2lake` is quick and imports nothing heavy; commands that only read never import Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

import wal2lake

HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "psycopg", "pydantic", "typer", "rich")


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import wal2lake").intersection(HEAVY)


def test_importing_the_package_takes_less_than_0_3_s_of_processor_time() -> None:
    code = "import time; begin = time.process_time(); import wal2lake; print(time.process_time() - begin)"
    answers = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)]
    assert min(map(float, answers)) < 0.3


@pytest.mark.parametrize(
    "statement",
    [
        "import wal2lake.cli",
        "from wal2lake import Mirror, load_config",
        "import wal2lake.preflight.collect",
        "import wal2lake.observe.status",
    ],
)
def test_what_looks_without_mirroring_does_not_load_spark(statement: str) -> None:
    assert not loaded_by(statement).intersection({"pyspark", "py4j"})


def test_the_names_that_the_package_offers_are_there() -> None:
    assert {name: hasattr(wal2lake, name) for name in wal2lake.__all__} == dict.fromkeys(wal2lake.__all__, True)
    assert set(wal2lake.__all__) <= set(dir(wal2lake))


def test_a_name_that_the_package_does_not_offer_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mirrors'"):
        _ = wal2lake.mirrors  # type: ignore[attr-defined]
