"""One PostgreSQL server and one Spark session for the whole run; a database and a lake directory for each test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import warm_captures
from capture_modes import group
from changelogs import begun
from command import QUICK_JVM, Project
from proof_size import SHORT
from servers import Database, fresh_database, running_server
from wal2lake.capture.process import launch
from wal2lake.changelog import ChangeLog, LogStorage, storage_for
from wal2lake.changelog.storages.memory import MemoryStorage
from wal2lake.config import Config
from wal2lake.demo.server import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal2lake.lake import Lake

ConfigFactory = Callable[..., Config]
LAUNCH = launch
MEMORY = Path("/dev/shm")
ROOM = 8 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Keep databases and lakes in memory where there is room: the tests make and delete files by the hundred thousand.

    Those of long proofs may grow large, and stay on the disk. So does everything with a TMPDIR that was chosen.
    """
    long = "slow" in config.option.markexpr.replace("not slow", "") and not SHORT
    usable = "TMPDIR" not in os.environ and MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    if usable and not long and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


@pytest.fixture(scope="session", autouse=True)
def no_settings_from_outside() -> Iterator[None]:
    """The environment of whoever runs the tests must not configure what is tested."""
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name.startswith("WAL2LAKE_") and not name.startswith(("WAL2LAKE_TEST_", "WAL2LAKE_CACHE")):
                environment.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_long_waits() -> Iterator[None]:
    """What is looked at or written now and then is so more often: the tests wait for it hundreds of times."""
    with pytest.MonkeyPatch.context() as intervals:
        intervals.setattr("wal2lake.reconcile.reconciler.REFRESH_SECONDS", 1.0)
        intervals.setattr("wal2lake.scheduling.state_writer.SAVE_SECONDS", 0.1)
        intervals.setattr("wal2lake.scheduling.state_writer.IDLE_SAVE_SECONDS", 2.0)
        yield


@pytest.fixture(autouse=True)
def captures_of_the_product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests without the shared Spark start capture processes as the product does, also after those with it."""
    if "spark" not in request.fixturenames:
        monkeypatch.setattr("wal2lake.capture.process.launch", LAUNCH)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[Database]:
    with fresh_database(server) as made:
        yield made


@pytest.fixture
def config(database: Database, tmp_path: Path) -> ConfigFactory:
    """A function that makes a configuration for the test's database and a lake in its directory.

    Sections are given as dictionaries: `config(lake={"properties": {...}}, groups=[{...}])`.
    """

    def make(**sections: Any) -> Config:
        sections["source"] = {"dsn": database.dsn, **sections.get("source", {})}
        sections["lake"] = {"path": str(tmp_path / "lake"), **sections.get("lake", {})}
        sections["groups"] = [group(**one) for one in sections.get("groups", [{"flush_interval": 0.1}])]
        return Config(**sections)

    return make


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """One Spark for the run, started by the product's own code."""
    from wal2lake.lake.iceberg.runtime import RUNTIME
    from wal2lake.lake.spark.driver import Driver

    # The tests make hundreds of plans and run each once or twice: compiling takes longer than what it makes faster.
    # Proofs, and the tests on other majors, run the plans that the product runs.
    conf = {"spark.driver.extraJavaOptions": QUICK_JVM}
    if request.config.option.markexpr == "not slow" and "WAL2LAKE_TEST_PG_BIN" not in os.environ:
        conf |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    config = Config(source={"dsn": "postgresql://unused"}, spark={"master": "local[2]", "conf": conf})
    driver = Driver(config, RUNTIME)
    driver.start({})
    try:
        # Where a mirror runs on this Spark, the start of its capture process is not what is tested.
        with pytest.MonkeyPatch.context() as captures:
            captures.setattr("wal2lake.capture.process.launch", warm_captures.launch)
            yield driver.root
    finally:
        driver.stop()


@pytest.fixture
def lake(config: ConfigFactory, spark: SparkSession) -> Iterator[Lake]:
    """A started lake in the test's directory, on the shared Spark."""
    from wal2lake.lake import Lake

    started = Lake(config(), spark)
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A directory to run the real command line in; what it leaves running is killed."""
    made = Project(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=["directory", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> LogStorage:
    """An empty place for change logs, of each kind."""
    return storage_for(tmp_path) if request.param == "directory" else MemoryStorage()


@pytest.fixture
def log(storage: LogStorage) -> ChangeLog:
    return begun(storage)


@pytest.fixture
def log_on_disk(tmp_path: Path) -> ChangeLog:
    return begun(storage_for(tmp_path))
