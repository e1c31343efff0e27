"""The class-data archive is found by all that it depends on: a JVM passes over one that does not fit, silently."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from wal2lake.lake.spark import archive


def test_a_reinstalled_spark_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "pyspark" / "jars" / "spark-core_2.13-4.1.4.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    os.utime(jar, (1, 1))
    before = archive.archive_path({}, ())
    assert archive.archive_path({}, ()) == before
    os.utime(jar, (2, 2))
    assert archive.archive_path({}, ()) != before
