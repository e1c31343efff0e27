"""Makes the class-data archive: a JVM does typical work, and dumps the classes that it loaded."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..names import CATALOG
from ..spark.archive import archive_path
from ..spark.jars import ensure as fetch
from ..spark.jars import needed
from .runtime import RUNTIME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_JVM_EXIT_LIMIT = 300


def ensure() -> Path:
    """Make the archive if it does not exist, by a JVM that does typical work and then dumps its classes.

    Missing jars are fetched.
    """
    jars = needed(RUNTIME).values()
    fetch({}, jars)
    path = archive_path({}, jars)
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory(prefix="wal2lake-archive-") as directory:
        made = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        _train(Path(directory), made)
        if made.is_file():
            made.rename(path)
    return path


def _train(directory: Path, archive: Path) -> None:
    from pydantic import SecretStr

    from ...config import Config, LakeConfig, SourceConfig, SparkConfig
    from ..spark.driver import Driver
    from .tables import IcebergTables

    config = Config(
        source=SourceConfig(dsn=SecretStr("postgresql://nowhere")),
        lake=LakeConfig(path=str(directory)),
        spark=SparkConfig(conf={"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}),
    )
    driver = Driver(config, RUNTIME)
    driver.start(IcebergTables(config).settings())
    process = driver.gateway.proc
    try:
        with driver.session("training") as session:
            _typical_work(session, directory)
        driver.jvm.java.lang.System.exit(0)
    except Exception:
        # The JVM ends during the call; the existence of the file shows whether it was successful.
        log.debug("the JVM ended", exc_info=True)
    process.wait(_JVM_EXIT_LIMIT)
    driver.stop()


def _typical_work(session: SparkSession, directory: Path) -> None:
    """A copy, an append and a merge, as far as possible without a database."""
    jvm: Any = session._jvm
    jvm.java.lang.Class.forName("org.postgresql.Driver")
    session.sql(f"CREATE NAMESPACE {CATALOG}.training")
    table = f"{CATALOG}.training.t"
    rows = session.range(1000).selectExpr(
        "cast(id AS int) AS id", "cast(id AS string) AS v", "cast(id AS decimal(12,2)) AS n",
        "timestamp_micros(id) AS at", "from_json('[1]', 'array<string>') AS list",
    )  # fmt: skip
    rows.writeTo(table).using("iceberg").tableProperty("format-version", "3").tableProperty(
        "write.merge.mode", "merge-on-read"
    ).create()
    rows.write.parquet(str(directory / "changes"))
    changes = session.read.schema("id int, v string, n decimal(12,2), at timestamp, list array<string>").parquet(
        str(directory / "changes")
    )
    changes.where("id < 10").writeTo(table).append()
    changes.selectExpr("*", "row_number() OVER (PARTITION BY id ORDER BY at DESC) AS nth").where(
        "nth = 1 AND id > 100"
    ).createOrReplaceTempView("training_changes")
    session.sql(
        f"""
        MERGE INTO {table} AS t USING training_changes AS s ON t.id = s.id
        WHEN MATCHED AND s.v = '200' THEN DELETE
        WHEN MATCHED THEN UPDATE SET t.v = s.v, t.n = s.n, t.at = s.at
        WHEN NOT MATCHED AND s.v <> '200' THEN INSERT (id, v, n, at, list) VALUES (s.id, s.v, s.n, s.at, s.list)
        """  # noqa: S608 - constant names
    )
