"""A class-data archive: the JVM's classes as it has them in memory, so that a start need not load and verify them.

It takes more than a third of the processor time off a start with a first commit. It is made once, after the jars are
there (`make setup` does it); without one, or with one of another Java, everything works as well, only later.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import jars
from .names import CATALOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_JVM_EXIT_LIMIT = 300


def archive_path(conf: Mapping[str, str]) -> Path:
    """Where the archive for this Java, this Spark and these jars is, or would be."""
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    package = Path(pyspark.__file__).resolve().parent
    parts = [str(java.resolve()), pyspark.__version__, str(package)]
    # The JVM passes over an archive, without a word, when a file that it was made from has another time.
    dated = [java.resolve(), *sorted(package.glob("jars/spark-core*.jar"))]
    parts += [str(file.stat().st_mtime_ns) for file in dated if file.exists()]
    parts += [jar.file for jar in jars.NEEDED] + [conf.get("spark.driver.extraClassPath", "")]
    return jars.cache_directory() / f"classes-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.jsa"


def java_option(conf: Mapping[str, str]) -> str:
    """The option that lets a driver use the archive; '' where there is none, or the user has set one."""
    path = archive_path(conf)
    given = conf.get("spark.driver.extraJavaOptions", "")
    if not path.is_file() or "SharedArchiveFile" in given or "ArchiveClassesAtExit" in given:
        return ""
    return f"-XX:SharedArchiveFile={path} -Xlog:cds=off -Xlog:cds+dynamic=off"


def ensure() -> Path:
    """Make the archive if it is not there: run what a mirror runs, then let the JVM write down what it loaded."""
    path = archive_path({})
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

    from ..config import Config, LakeConfig, SourceConfig, SparkConfig
    from .iceberg import IcebergTables
    from .spark import Driver

    config = Config(
        source=SourceConfig(dsn=SecretStr("postgresql://nowhere")),
        lake=LakeConfig(path=str(directory)),
        spark=SparkConfig(conf={"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}),
    )
    driver = Driver(config)
    driver.start(IcebergTables(config).settings())
    process = driver.gateway.proc
    try:
        with driver.session("training") as session:
            _typical_work(session, directory)
        driver.jvm.java.lang.System.exit(0)
    except Exception:
        # The JVM goes away in the middle of the call; whether it wrote the archive is seen by the file.
        log.debug("the JVM ended", exc_info=True)
    process.wait(_JVM_EXIT_LIMIT)
    driver.stop()


def _typical_work(session: SparkSession, directory: Path) -> None:
    """A copy, an append and a merge, as far as they go without a database."""
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
