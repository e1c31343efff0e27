"""Spark for the lake: started on demand, restarted when its JVM dies; provides sessions for work."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import LakeUnwritable, SparkLost, SparkUnavailable, Wal2LakeError, advise
from ...schema import TableId
from ..format import TableFormat
from ..names import OURS
from .driver import Driver
from .java_errors import copy_failure, lake_failure
from .restarts import MOST_IN_A_ROW, Restarts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...config import Config

log = logging.getLogger(__name__)


class SparkService:
    """The driver and its restarts. Methods may be called from several threads."""

    def __init__(self, config: Config, tables: TableFormat, spark: SparkSession | None, on_demand: bool) -> None:
        """`on_demand`: start Spark only when it is needed."""
        self._on_demand = on_demand and spark is None
        self._path = Path(config.lake.path).absolute()
        self._tables = tables
        self.driver = Driver(config, tables.runtime, spark)
        self._opening = False
        self._starting = threading.Lock()
        self._started = False
        self._stopped = threading.Event()
        self._keeper: threading.Thread | None = None
        self.starts = 0
        """how often Spark has been started; work that failed with a JVM can be retried on the next one"""
        self.failure: SparkUnavailable | None = None
        """why Spark will not be started again: it died too often, or the user's session has ended"""

    @property
    def ready(self) -> bool:
        """Whether Spark is available; it is not during a restart."""
        return self._started or self.waits_for_demand

    @property
    def waits_for_demand(self) -> bool:
        return self._on_demand and not self._started and self.starts == 0

    def begin(self) -> None:
        """Start Spark, unless it is to be started on demand."""
        if not self.waits_for_demand:
            self.start()

    def start(self) -> None:
        """Start Spark and open the catalog, once. Raises SparkUnavailable, LakeUnwritable or LakeError.

        It is restarted when its JVM dies, unless that happens too often.
        """
        with self._starting:
            if self.failure is not None:
                raise self.failure
            if self._started:
                return
            self._open()
            if not self.driver.given and self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="spark-keeper", daemon=True)
                self._keeper.start()

    def _open(self) -> None:
        self._tables.require_usable()
        self._require_writable()
        self.driver.start(self._tables.settings())
        self._opening = True
        try:
            with self.work("opening the catalog", "the lake") as session:
                self._tables.find(session, TableId("wal2lake", "wal2lake"))
        finally:
            self._opening = False
        self.starts += 1
        self._started = True

    def _keep(self) -> None:
        """Restart Spark whenever its JVM has ended by itself."""
        restarts = Restarts()
        while True:
            began = monotonic()
            how = self.driver.wait()
            self._started = False
            delay = restarts.ended(monotonic() - began)
            while not self._stopped.is_set():
                if delay is None:
                    self.failure = _given_up(how)
                    return
                log.warning("Spark's JVM has died (%s); it is restarted", how)
                if self._stopped.wait(delay):
                    return
                try:
                    with self._starting:
                        self.driver.discard()
                        self._open()
                    log.info("Spark is available again")
                    break
                except Exception as error:
                    log.debug("starting Spark again", exc_info=True)
                    how, delay = advise(error).message, restarts.ended(0.0)
            if self._stopped.is_set():
                return

    def stop(self) -> None:
        """Stop the Spark that `start` started; a session of the user goes on. Any thread may call it, repeatedly."""
        self._stopped.set()
        self.driver.stop()

    def kill(self) -> None:
        """Kill the Spark that `start` started, also during its start: running work fails; commits are atomic.

        A session of the user goes on.
        """
        self._stopped.set()
        self.driver.kill()

    @contextmanager
    def work(
        self, operation: str, table: TableId | str, settings: dict[str, str] | None = None, copy: bool = False
    ) -> Iterator[SparkSession]:
        """A session for one piece of work; failures in it are raised as our errors."""
        if self.waits_for_demand and not self._opening:
            self.start()
        try:
            with self.driver.session(f"{operation} {table}", settings) as session:
                yield session
        except Wal2LakeError:
            raise
        except Exception as error:
            kind_of = self._tables.failure_kind
            if copy and isinstance(table, TableId):
                failure = copy_failure(error, table, str(self._path), kind_of)
            else:
                failure = lake_failure(error, table, operation, str(self._path), kind_of)
            raise self._lost(failure) from error

    def _lost(self, failure: Wal2LakeError) -> Wal2LakeError:
        """The error of some work, or SparkLost if the JVM has died meanwhile, which may cause errors of any kind."""
        if isinstance(failure, SparkLost) and not self._stopped.is_set():
            # A JVM that does not answer is useless, whether or not its process exists.
            self._started = False
            self.driver.kill()
        if self._stopped.is_set() or not self.driver.gone:
            return failure
        if self.driver.given:
            self.failure = SparkUnavailable(
                cause="the given session has ended", remedy="create a new one and start the mirror again with it"
            )
            return self.failure
        return failure if isinstance(failure, SparkLost) else SparkLost(cause="it died while work was running")

    def _require_writable(self) -> None:
        try:
            (self._path / OURS).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._path):
                pass
        except OSError as error:
            raise LakeUnwritable(path=str(self._path), cause=error.strerror) from error


def _given_up(how: str) -> SparkUnavailable:
    return SparkUnavailable(
        cause=f"its JVM ended {MOST_IN_A_ROW + 1} times in a row, last: {how}",
        remedy="give it more memory, as in: [spark] conf = { 'spark.driver.memory' = '4g' }, and see that the machine"
        " has it; run with --debug to see Spark's own messages",
    )
