"""The Spark driver: quiet, ended with this process, started again when its JVM dies; and the sessions of the work.

Every piece of work gets a session of its own for its duration, because the position of a commit travels as session
configuration and must never reach another table's commit. A user's own session is only ever asked for new ones.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..errors import SparkLost, SparkUnavailable
from . import jars
from .jvm import Jvm, forget
from .spark_settings import driver_settings, session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..config import Config

log = logging.getLogger(__name__)

OLDEST_JAVA = 17
_START = threading.Lock()


def java_version() -> int | None:
    """The major version of the Java that Spark would run on; None without one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(match[1]) if match else None


class Driver:
    """The JVM. `start` begins it (or takes the user's session), `stop` ends only what `start` began."""

    def __init__(self, config: Config, spark: SparkSession | None = None) -> None:
        self._config = config
        self._given = spark
        self._root: SparkSession | None = None
        self._own: Jvm | None = None
        self._sessions: Any = None
        self._idle: list[SparkSession] = []
        self._settings: dict[str, str] = {}
        self._lock = threading.Lock()
        self._groups: dict[str, str] = {}
        self._stopping = False

    def start(self, settings: Mapping[str, str]) -> None:
        """Start the JVM. `settings` are the catalog's, for every session. Raises SparkUnavailable."""
        if self._given is not None:
            _require_jars(self._given)
            self._root = self._given
        elif self._root is None:
            with _START:
                self._root = self._launch()
        if self._stopping:
            # Stopped while it was starting: whoever asked for that has found nothing to end.
            self._end_own(self._root)
            raise _stopped()
        # Kept, because finding a class takes a call into the JVM for each package.
        self._sessions = self.jvm.org.apache.spark.sql.classic.SparkSession
        cores = self.cores
        self._settings = {**session_settings(cores), **self._user_sql_settings(), **settings}

    @property
    def root(self) -> SparkSession:
        if self._stopping:
            raise _stopped()
        if self._root is None:
            raise SparkLost(cause="it is being started again")
        return self._root

    @property
    def gateway(self) -> Any:
        return self._own.gateway if self._own is not None else None

    @property
    def given(self) -> bool:
        """Whether it is a session of the user's, which only the user can start again."""
        return self._given is not None

    @property
    def gone(self) -> bool:
        """Whether the JVM has ended though nobody has stopped it."""
        if self._given is not None:
            return not _answers(self._given)
        return self._root is None or self._own is None or self._own.gone

    def wait(self) -> str:
        """Wait until our own JVM has ended; how it did."""
        assert self._own is not None
        return self._own.wait()

    def discard(self) -> None:
        """Drop all that belonged to a JVM that is gone; `start` begins another one."""
        with self._lock:
            root, self._root, self._idle, self._groups = self._root, None, [], {}
            own, self._own, self._sessions = self._own, None, None
        if own is not None:
            forget(own.gateway, root)
            own.end()

    def kill(self) -> None:
        """End our own JVM at once, also while it is starting; whoever waits for it gets an error."""
        if self._own is not None:
            self._own.kill()

    @property
    def cores(self) -> int:
        return int(self.root.sparkContext.defaultParallelism)

    @property
    def jvm(self) -> Any:
        return self.root._jvm

    @contextmanager
    def session(self, label: str, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
        """A session for one piece of work, with settings for its duration alone."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        session = session if session is not None else self._fresh()
        try:
            for name, value in (settings or {}).items():
                session.conf.set(name, value)
            with self.job_group(label), self._active(session):
                yield session
        finally:
            # A session goes back only without the settings, so that they can't reach another table's commit.
            for name in settings or {}:
                if (usual := self._settings.get(name)) is not None:
                    session.conf.set(name, usual)
                else:
                    session.conf.unset(name)
            with self._lock:
                if self._root is not None and session._sc is self._root._sc:
                    self._idle.append(session)

    @contextmanager
    def _active(self, session: SparkSession) -> Iterator[None]:
        """Catalogs are configured from the session that is active in the JVM's thread, whichever session is asked."""
        before = self._sessions.getActiveSession()
        self._sessions.setActiveSession(session._jsparkSession)
        try:
            yield
        finally:
            if before.isDefined():
                self._sessions.setActiveSession(before.get())
            else:
                self._sessions.clearActiveSession()

    def group(self) -> str:
        """The name of the job group of the calling thread's work."""
        return f"wal2lake-{id(self):x}-{threading.get_ident():x}"

    @contextmanager
    def job_group(self, label: str) -> Iterator[str]:
        context = self.root.sparkContext
        group = self.group()
        with self._lock:
            self._groups[group] = label
        context.setJobGroup(group, label, interruptOnCancel=True)
        try:
            yield group
        finally:
            with self._lock:
                self._groups.pop(group, None)
            if not self._stopping:
                for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                    context.setLocalProperty(name, None)

    def cancel(self, wanted: Callable[[str], bool] = lambda _: True) -> None:
        """Cancel the jobs that run for us, or those of wanted labels; work under way fails soon after."""
        root = self._root
        if root is None:
            return
        with self._lock:
            groups = [group for group, label in self._groups.items() if wanted(label)]
        for group in groups:
            root.sparkContext.cancelJobGroup(group)

    def stop(self) -> None:
        """End the JVM if it is ours. Safe from any thread, and more than once."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            root, self._root, self._idle = self._root, None, []
        if root is not None:
            self._end_own(root)
        else:
            # One that is starting is waited for by whoever starts it.
            self.kill()

    def _end_own(self, root: SparkSession) -> None:
        if self._given is not None:
            return
        own = self._own
        if own is not None and own.gone:
            forget(own.gateway, root)
        else:
            try:
                root.stop()
            except Exception:
                log.debug("stopping Spark", exc_info=True)
        if own is not None:
            own.end()
            forget(own.gateway, None)

    def _fresh(self) -> SparkSession:
        session = self.root.newSession()
        for name, value in self._settings.items():
            session.conf.set(name, value)
        return session

    def _user_sql_settings(self) -> dict[str, str]:
        # What is fixed at the start (extensions, static settings) is already in the session.
        given = self._config.spark.conf
        return {
            name: value for name, value in given.items() if self._given is None and name in session_settings(1)
        }  # fmt: skip

    def _launch(self) -> SparkSession:
        version = java_version()
        if version is None or version < OLDEST_JAVA:
            raise SparkUnavailable(
                cause="Java is not installed" if version is None else f"Java {version} is too old, it needs 17 or newer"
            )
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        if SparkContext._active_spark_context is not None:
            raise SparkUnavailable(
                cause="another Spark session is active in this process", remedy="pass that session to Mirror"
            )
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        spark = self._config.spark
        debug = log.isEnabledFor(logging.DEBUG)
        settings = driver_settings(spark.master, spark.conf, jars.ensure(spark.conf), debug=debug)
        output = None if debug else tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the JVM
        own = self._own = Jvm(output)
        try:
            if self._stopping:
                raise _stopped()
            gateway = own.launch(settings)
            conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            session = SparkSession(SparkContext(conf=conf, gateway=gateway))
            _write_files_alone(session)
            return session
        except Exception as error:
            reason = _last_words(output)
            forget(own.gateway, None)
            own.kill()
            own.end()
            if self._stopping:
                raise _stopped() from error
            raise SparkUnavailable(
                cause=f"its JVM did not come up{reason}",
                remedy="see [spark] master and conf; run with --debug to see Spark's own messages",
            ) from error


def _stopped() -> SparkUnavailable:
    return SparkUnavailable(cause="it is stopped", remedy="start it again")


def _answers(spark: SparkSession) -> bool:
    """Whether a session's JVM is there, and its context has not been stopped."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def _write_files_alone(session: SparkSession) -> None:
    """Without a file of checksums beside each local file: Hadoop starts processes for the permissions of either."""
    jvm: Any = session._jvm
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration).setWriteChecksum(False)


def _require_jars(spark: SparkSession) -> None:
    needed = {
        "org.apache.iceberg.spark.SparkCatalog": jars.ICEBERG,
        "org.sqlite.JDBC": jars.SQLITE,
        "org.postgresql.Driver": jars.POSTGRESQL,
    }
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils
    missing = [jar.coordinate for name, jar in needed.items() if not loader.classIsLoadable(name)]
    if missing:
        raise SparkUnavailable(
            cause="the given Spark session lacks " + ", ".join(missing),
            remedy="build it with spark.jars.packages=" + ",".join(jar.coordinate for jar in jars.NEEDED),
        )


def _last_words(output: IO[bytes] | None) -> str:
    """Why the JVM went away, from what it printed: a bad setting, no memory. Nothing of any row is in there yet."""
    if output is None:
        return ""
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    for line in lines:
        if line.startswith(
            ("Error", "Exception", "Unrecognized", "Invalid", "Could not", "OpenJDK 64-Bit Server VM w")
        ):
            return f" ({line.strip()[:200]})"
    return ""
