"""A class-data archive: loaded classes of the JVM in a file, so that a start need not load and verify them.

It saves more than a third of the CPU time of a start with a first commit. `make setup` makes it once, when the jars are
there; without it, or with that of another Java, everything works, but starts slower.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

from ...java import java_path
from ..format import Jar
from . import jars


def archive_path(conf: Mapping[str, str], needed: Collection[Jar]) -> Path:
    """The path of the archive for this Java, this Spark and these jars, whether or not it exists."""
    import pyspark

    java = Path(java_path() or "java")
    package = Path(pyspark.__file__).resolve().parent
    parts = [str(java.resolve()), pyspark.__version__, str(package)]
    # The JVM silently ignores an archive if the timestamp of one of its source files differs.
    dated = [java.resolve(), *sorted(package.glob("jars/spark-core*.jar"))]
    parts += [str(file.stat().st_mtime_ns) for file in dated if file.exists()]
    parts += [jar.file for jar in needed] + [conf.get("spark.driver.extraClassPath", "")]
    return jars.cache_directory() / f"classes-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.jsa"


def java_option(conf: Mapping[str, str], needed: Collection[Jar]) -> str:
    """The JVM option for the archive; '' if there is none, or if the user has set one."""
    path = archive_path(conf, needed)
    given = conf.get("spark.driver.extraJavaOptions", "")
    if not path.is_file() or "SharedArchiveFile" in given or "ArchiveClassesAtExit" in given:
        return ""
    return f"-XX:SharedArchiveFile={path} -Xlog:cds=off -Xlog:cds+dynamic=off"
