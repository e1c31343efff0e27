"""The JVM process of our own Spark driver: starting it, killing it also during its start, and cleaning up after it.

PySpark's own launcher can't be interrupted and puts the whole configuration on the command line, which every user of
the machine can read. Here it is in a file that only this user can read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_END_SECONDS = 5.0


class LaunchFailed(Exception):
    """The process ended before a connection was made."""


class Jvm:
    """One JVM process. `launch` starts it and connects; `kill` ends it at any moment, from any thread."""

    def __init__(self, output: IO[bytes] | None) -> None:
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.gateway: Any = None
        """PySpark's connection to it; None until `launch` has returned"""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def gone(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def launch(self, settings: Mapping[str, str]) -> Any:
        """Start the process and connect to it. Raises LaunchFailed or an error of PySpark's."""
        from pyspark.find_spark_home import _find_spark_home
        from pyspark.java_gateway import launch_gateway
        from pyspark.serializers import UTF8Deserializer, read_int

        directory = Path(tempfile.mkdtemp(prefix="wal2lake-spark-"))
        try:
            properties, answer = directory / "spark.properties", directory / "connection"
            properties.touch(mode=0o600)
            properties.write_text(as_properties(settings), "utf-8")
            submit = str(Path(_find_spark_home()) / "bin" / "spark-submit")
            # Its own process group, ignoring SIGINT: Ctrl-C reaches us, and we end the JVM when our work is done.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", 'trap "" INT; exec "$0" "$@"', submit, "--properties-file", str(properties),
                 "--load-spark-defaults", "pyspark-shell"],
                stdin=subprocess.PIPE, stdout=self._output or 2, stderr=self._output, start_new_session=True,
                env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)},
            )  # fmt: skip
            if self._killed:
                self._process.kill()
            # The file appears complete: Spark renames it.
            while not answer.exists():
                if self.gone:
                    raise LaunchFailed
                time.sleep(_LOOK_SECONDS)
            with answer.open("rb") as info:
                port, secret = read_int(info), UTF8Deserializer().loads(info)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
            self.gateway = launch_gateway()
        self.gateway.proc = self._process
        return self.gateway

    def wait(self) -> str:
        """Wait for its end; return how it ended, for messages."""
        assert self._process is not None
        code = self._process.wait()
        if code >= 0:
            return f"exit status {code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"

    def kill(self) -> None:
        self._killed = True
        if self._process is not None and not self.gone:
            self._process.kill()

    def end(self) -> None:
        """Close the connection and let the process end cleanly; kill it if that takes too long."""
        if self.gateway is not None and not self.gone:
            try:
                self.gateway.shutdown()
            except Exception:
                log.debug("closing the gateway", exc_info=True)
        process = self._process
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._output is not None:
            self._output.close()


def forget(gateway: Any, root: SparkSession | None) -> None:
    """Make PySpark forget a JVM that has ended; otherwise it would give the dead connection to the next context."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if root is not None:
        context = root.sparkContext
        # Without the gateway, only this side is stopped: there is no JVM to call.
        context._jsc = None
        try:
            context.stop()
        except Exception:
            log.debug("ending what belonged to Spark on this side", exc_info=True)
        if SparkSession._instantiatedSession is not None and SparkSession._instantiatedSession._sc is context:
            SparkSession._instantiatedSession = None
            SparkSession._activeSession = None
    if gateway is not None and SparkContext._gateway is gateway:
        SparkContext._gateway = None
        SparkContext._jvm = None


def as_properties(settings: Mapping[str, str]) -> str:
    """Settings as the text of a Java properties file."""
    return "".join(f"{_escaped(name, key=True)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str, key: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if key:
        return "".join(f"\\{char}" if char in " =:#!" else char for char in text)
    return f"\\{text}" if text.startswith(" ") else text


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
