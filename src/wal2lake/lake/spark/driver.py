"""The Spark driver, which ends with this process and is restarted when its JVM dies, and sessions for work.

Every piece of work has a session of its own, because the position of a commit is passed as session configuration and
must never reach another table's commit. A user's session is only used to create new ones.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from ...errors import SparkLost, SparkUnavailable
from ...java import OLDEST_JAVA, find_java
from ..format import Jar, Runtime
from . import jars
from .gateway import keep_packages
from .jvm import Jvm, forget
from .settings import driver_settings, session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...config import Config

log = logging.getLogger(__name__)

_START = threading.Lock()


class Driver:
    """The JVM. `start` starts it (or uses the user's session), `stop` ends only what `start` started."""

    def __init__(self, config: Config, runtime: Runtime, spark: SparkSession | None = None) -> None:
        self._config, self._runtime = config, runtime
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
        """Start the JVM. `settings` are those of the catalog, for every session. Raises SparkUnavailable."""
        if self._given is not None:
            _require_jars(self._given, jars.needed(self._runtime))
            self._root = self._given
        elif self._root is None:
            with _START:
                self._root = self._launch()
        if self._stopping:
            # `stop` was called during the start, when there was nothing to end.
            self._end_own(self._root)
            raise _stopped()
        keep_packages(self.jvm, self._runtime.packages)
        # Cached, because finding a class takes a call into the JVM for each package.
        self._sessions = self.jvm.org.apache.spark.sql.classic.SparkSession
        cores = self.cores
        self._settings = {**session_settings(cores, self._runtime), **self._user_sql_settings(), **settings}

    @property
    def root(self) -> SparkSession:
        if self._stopping:
            raise _stopped()
        if self._root is None:
            raise SparkLost(cause="it is being restarted")
        return self._root

    @property
    def gateway(self) -> Any:
        return self._own.gateway if self._own is not None else None

    @property
    def given(self) -> bool:
        """Whether the session is the user's, which only the user can restart."""
        return self._given is not None

    @property
    def gone(self) -> bool:
        """Whether the JVM has ended by itself."""
        if self._given is not None:
            return not _answers(self._given)
        return self._root is None or self._own is None or self._own.gone

    def wait(self) -> str:
        """Wait until our own JVM has ended; return how it ended."""
        assert self._own is not None
        return self._own.wait()

    def discard(self) -> None:
        """Drop all objects of a dead JVM; then `start` can start another one."""
        with self._lock:
            root, self._root, self._idle, self._groups = self._root, None, [], {}
            own, self._own, self._sessions = self._own, None, None
        if own is not None:
            forget(own.gateway, root)
            own.end()

    def kill(self) -> None:
        """Kill our own JVM, also during its start, which then fails."""
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
        """A session for one piece of work, with settings for its duration."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        session = session if session is not None else self._fresh()
        try:
            for name, value in (settings or {}).items():
                session.conf.set(name, value)
            with self.job_group(label), self._active(session):
                yield session
        finally:
            # A session is reused only after its settings were removed, so that they can't reach another commit.
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
        """Catalogs are configured from the active session of the JVM's thread, not from the session in use."""
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
        """Cancel our running jobs, or those with wanted labels; their work fails soon after."""
        root = self._root
        if root is None:
            return
        with self._lock:
            groups = [group for group, label in self._groups.items() if wanted(label)]
        for group in groups:
            root.sparkContext.cancelJobGroup(group)

    def stop(self) -> None:
        """End the JVM if it is ours. Any thread may call it, repeatedly."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            root, self._root, self._idle = self._root, None, []
        if root is not None:
            self._end_own(root)
        else:
            # The thread that starts it waits for the end of the start.
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
        ours, given = session_settings(1, self._runtime), self._config.spark.conf
        return {name: value for name, value in given.items() if self._given is None and name in ours}

    def _launch(self) -> SparkSession:
        version = find_java().major
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
        paths = jars.ensure(spark.conf, jars.needed(self._runtime).values())
        settings = driver_settings(spark.master, spark.conf, self._runtime, paths, debug=debug)
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
    return SparkUnavailable(cause="it was stopped", remedy="start the run again")


def _answers(spark: SparkSession) -> bool:
    """Whether a session's JVM is alive and its context is not stopped."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def _write_files_alone(session: SparkSession) -> None:
    """Write local files without checksum files: Hadoop starts a process to set the permissions of each file."""
    jvm: Any = session._jvm
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration).setWriteChecksum(False)


def _require_jars(spark: SparkSession, needed: Mapping[str, Jar]) -> None:
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils
    missing = [jar.coordinate for name, jar in needed.items() if not loader.classIsLoadable(name)]
    if missing:
        raise SparkUnavailable(
            cause="the given Spark session lacks " + ", ".join(missing),
            remedy="build it with spark.jars.packages=" + ",".join(jar.coordinate for jar in needed.values()),
        )


def _last_words(output: IO[bytes] | None) -> str:
    """Why the JVM ended, from its output: a bad setting, no memory. At that time it can't contain row values."""
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
