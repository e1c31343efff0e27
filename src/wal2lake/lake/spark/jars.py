"""Spark's extra jars, and a cache of them so that only the first start needs a network.

Spark itself resolves them (with its repositories, mirrors and Ivy settings), in a separate process, into a private
directory; then the files are moved into the cache, so that no other start sees an incomplete file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ...errors import SparkUnavailable
from ..format import Jar, Runtime

log = logging.getLogger(__name__)

_PASSED_ON = ("spark.jars.repositories", "spark.jars.ivySettings", "spark.jars.excludes")
_RESOLUTION_LIMIT = 900


POSTGRESQL = Jar("org.postgresql", "postgresql", "42.7.14")


def needed(runtime: Runtime) -> Mapping[str, Jar]:
    """All jars of a driver, by a class of each: those of the table format, and the one that copies read with."""
    return {**runtime.jars, "org.postgresql.Driver": POSTGRESQL}


def cache_directory() -> Path:
    """`$WAL2LAKE_CACHE`, or `wal2lake/jars` in the user's cache directory."""
    if given := os.environ.get("WAL2LAKE_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wal2lake" / "jars"


def ensure(conf: Mapping[str, str], jars: Collection[Jar]) -> list[Path]:
    """Paths of the jars; missing ones are fetched into the cache. Raises SparkUnavailable if that fails."""
    cache = cache_directory()
    paths = [cache / jar.file for jar in jars]
    if all(path.is_file() for path in paths):
        return paths
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / ".lock"):
            missing = [jar for jar in jars if not (cache / jar.file).is_file()]
            if missing:
                log.info("fetching %d jars for Spark into %s", len(missing), cache)
                _fetch(missing, cache, conf)
    except OSError as error:
        raise SparkUnavailable(
            cause=f"cannot write the jar cache at {cache}: {error.strerror}",
            remedy="make that directory writable, or name another one in WAL2LAKE_CACHE",
        ) from error
    return paths


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(jars: list[Jar], cache: Path, conf: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as private:
        script = Path(private) / "nothing.py"
        script.write_text("")
        result = _resolve(jars, Path(private), script, conf)
        found = Path(private) / "jars"
        absent = [jar for jar in jars if not (found / jar.file).is_file()]
        if result.returncode != 0 or absent:
            raise SparkUnavailable(
                cause="its jars could not be fetched: "
                + ", ".join(jar.coordinate for jar in absent or jars) + _reason(result.stderr),
                remedy=f"allow access to Maven Central (or set DEFAULT_ARTIFACT_REPOSITORY to a mirror), "
                f"or put the files into {cache} as " + ", ".join(jar.file for jar in absent or jars),
            )  # fmt: skip
        for jar in jars:
            shutil.move(found / jar.file, cache / jar.file)


def _resolve(jars: list[Jar], private: Path, script: Path, conf: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {name: conf[name] for name in _PASSED_ON if name in conf}
    settings |= {"spark.jars.ivy": str(private), "spark.jars.packages": ",".join(jar.coordinate for jar in jars)}
    command = [str(submit), "--master", "local[1]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(submit.parent.parent)}
    try:
        return subprocess.run(
            [*command, str(script)], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=_RESOLUTION_LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SparkUnavailable(
            cause="its jars could not be fetched in time", remedy="check that Maven Central can be reached"
        ) from None


def _reason(output: str) -> str:
    for line in output.splitlines():
        if "UnknownHost" in line or "Connection" in line or "timed out" in line:
            return " (no connection to the repository)"
    return ""
