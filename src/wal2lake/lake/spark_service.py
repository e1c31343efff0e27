"""Spark as the lake uses it: started when needed, started again when its JVM dies, and the sessions of the work."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import (
    LakeUnwritable,
    SparkLost,
    SparkUnavailable,
    Wal2LakeError,
    advise,
)
from ..quoting import toml
from ..schema import TableId
from .filesystem import network_file_system
from .iceberg import IcebergTables
from .java_errors import copy_failure, lake_failure
from .names import OURS
from .restarts import MOST_IN_A_ROW, Restarts
from .spark import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..config import Config

log = logging.getLogger(__name__)


class SparkService:
    """The driver and its life. Methods may be called from several threads."""

    def __init__(self, config: Config, tables: IcebergTables, spark: SparkSession | None, on_demand: bool) -> None:
        """`on_demand`: there may be nothing to do, so Spark is started when it is needed."""
        self._on_demand = on_demand and spark is None
        self._path = Path(config.lake.path).absolute()
        self._tables = tables
        self.driver = Driver(config, spark)
        self._opening = False
        self._starting = threading.Lock()
        self._started = False
        self._stopped = threading.Event()
        self._keeper: threading.Thread | None = None
        self.starts = 0
        """how many times Spark has been started; work that failed with a JVM can be tried again on the next one"""
        self.failure: SparkUnavailable | None = None
        """why there will be no Spark any more: it died too often, or a session that was given has ended"""

    @property
    def ready(self) -> bool:
        """Whether Spark is there to work with; it is not while it is being started again."""
        return self._started or self.waits_for_demand

    @property
    def waits_for_demand(self) -> bool:
        return self._on_demand and not self._started and self.starts == 0

    def begin(self) -> None:
        """Start Spark, unless that is left to whoever needs it first."""
        if not self.waits_for_demand:
            self.start()

    def start(self) -> None:
        """Start Spark and open the catalog, once. Raises SparkUnavailable, LakeUnwritable or LakeError.

        When its JVM dies it is started again, as long as that does not happen too often.
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
        self._require_local_catalog()
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
        """Start Spark again whenever its JVM has ended by itself."""
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
                log.warning("Spark's JVM is gone (%s); it is started again", how)
                if self._stopped.wait(delay):
                    return
                try:
                    with self._starting:
                        self.driver.discard()
                        self._open()
                    log.info("Spark is back")
                    break
                except Exception as error:
                    log.debug("starting Spark again", exc_info=True)
                    how, delay = advise(error).message, restarts.ended(0.0)
            if self._stopped.is_set():
                return

    def stop(self) -> None:
        """End the Spark that `start` began; a session that was given goes on. Safe from any thread, and twice."""
        self._stopped.set()
        self.driver.stop()

    def kill(self) -> None:
        """End the Spark that `start` began at once, also while it starts: work under way fails, no commit is half made.

        A session that was given goes on.
        """
        self._stopped.set()
        self.driver.kill()

    @contextmanager
    def work(
        self, operation: str, table: TableId | str, settings: dict[str, str] | None = None, copy: bool = False
    ) -> Iterator[SparkSession]:
        """A session for one piece of work; what fails in it comes out as an error of ours."""
        if self.waits_for_demand and not self._opening:
            self.start()
        try:
            with self.driver.session(f"{operation} {table}", settings) as session:
                yield session
        except Wal2LakeError:
            raise
        except Exception as error:
            if copy and isinstance(table, TableId):
                failure = copy_failure(error, table, str(self._path))
            else:
                failure = lake_failure(error, table, operation, str(self._path))
            raise self._lost(failure) from error

    def _lost(self, failure: Wal2LakeError) -> Wal2LakeError:
        """The error of some work, or that its JVM has ended meanwhile, of which errors of any kind may follow."""
        if isinstance(failure, SparkLost) and not self._stopped.is_set():
            # A JVM that can't be talked to is of no use, whether or not its process is still there.
            self._started = False
            self.driver.kill()
        if self._stopped.is_set() or not self.driver.gone:
            return failure
        if self.driver.given:
            self.failure = SparkUnavailable(
                cause="the session that was given has ended", remedy="make a new one and start the mirror again with it"
            )
            return self.failure
        return failure if isinstance(failure, SparkLost) else SparkLost(cause="it ended while there was work under way")

    def _require_local_catalog(self) -> None:
        """Refuse a catalog in a SQLite file that others could write to from elsewhere: its locks would not hold."""
        file = self._tables.sqlite_file
        kind = None if file is None else network_file_system(file)
        if kind is not None:
            raise LakeUnwritable(
                path=str(self._path),
                cause=f"its catalog {file} would be a SQLite file on a network file system ({kind})",
                remedy="keep the catalog in a database, as in: [lake.catalog] type = 'jdbc', uri ="
                " 'jdbc:postgresql://host/database', 'jdbc.user' = 'user', 'jdbc.password' = 'password', warehouse ="
                f" {toml(str(self._path))}; or keep it on a local disk",
            )  # fmt: skip

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
