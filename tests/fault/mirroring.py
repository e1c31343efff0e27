"""A mirror of one database in the test's own process, on the shared Spark; its capture is a process of its own."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import NoSuchTableError

from capture_modes import group
from oracle import assert_equal_tables
from remedies import steps, toml
from servers import Database
from waiting import wait_until
from wal2lake.config import Config
from wal2lake.mirror import Mirror, OnceResult
from wal2lake.observe.status import GroupStatus, TableStatus
from wal2lake.position import Lsn
from wal2lake.source.publishing.slot import slot_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "default"
PATIENCE = 90.0


class Mirrored:
    """What a user does with a mirror, and what can be seen of it."""

    def __init__(self, database: Database, lake: Path, spark: SparkSession, **sections: Any) -> None:
        self.database, self.lake, self._spark = database, lake, spark
        self._sections = sections
        self.configure()

    def configure(self, **sections: Any) -> None:
        """Set sections of the configuration, as if they were written into the file."""
        self._sections |= sections
        source = {"dsn": self.database.dsn, **self._sections.get("source", {})}
        rest = {name: value for name, value in self._sections.items() if name != "source"}
        rest.setdefault("groups", [{"name": GROUP, "flush_interval": 0.1}])
        rest["groups"] = [group(**one) for one in rest["groups"]]
        self.sections = {"source": source, "lake": {"path": str(self.lake)}, **rest}
        self.config = Config(**self.sections)

    @property
    def slot(self) -> str:
        return slot_name(GROUP, self.database.name)

    @property
    def changelog(self) -> Path:
        return self.config.changelog_path / GROUP

    @property
    def spark(self) -> SparkSession:
        return self._spark

    def users_session(self) -> SparkSession:
        """Another Spark session on the same catalog, as a user has it."""
        session = self._spark.newSession()
        for name, value in {
            "": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc", ".warehouse": str(self.lake),
            ".uri": f"jdbc:sqlite:{self.lake / 'catalog.db'}", ".jdbc.schema-version": "V1", ".cache-enabled": "false",
        }.items():  # fmt: skip
            session.conf.set(f"spark.sql.catalog.lake{name}", value)
        return session

    def once(self) -> OnceResult:
        return Mirror(self.config, self._spark).run_once()

    def catches_up(self, *tables: str) -> None:
        """`run --once` reaches the position, and these tables are equal to PostgreSQL's."""
        result = self.once()
        assert not result.missed, [(table.name, table.error, table.remedy) for table in result.missed]
        self.equal(*tables)

    def equal(self, *tables: str) -> None:
        assert_equal_tables(self.database, self.lake, tables)

    def resync(self, *tables: str) -> None:
        Mirror(self.config).resync([f"public.{table}" for table in tables], all=not tables)

    @contextmanager
    def running(self) -> Iterator[None]:
        """`run` is active. An error that ends it before its time is raised at the end of the block."""
        stop = threading.Event()
        ended: list[BaseException] = []

        def body() -> None:
            try:
                Mirror(self.config, self._spark).run(stop)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=body, name="run")
        thread.start()
        try:
            yield
        except BaseException as error:
            if ended:
                error.add_note(f"the run had ended by then: {ended[0]!r}")
            raise
        finally:
            stop.set()
            thread.join(PATIENCE)
        assert not thread.is_alive(), "run does not stop"
        if ended:
            raise ended[0]

    def apply_requests(self, remedy: str | None) -> None:
        """Do what a remedy says, as it is printed: commands of ours, and statements in the source database."""
        found = steps(remedy or "")
        assert found, f"nothing that could be done: {remedy}"
        for step in found:
            if isinstance(step, str):
                self.database.execute(step)
            else:
                self.command(*step)

    def command(self, *arguments: str) -> str:
        """What the real command prints, given these arguments and this mirror's configuration."""
        file = self.lake.parent / "wal2lake.toml"
        file.write_text(toml(self.sections), "utf-8")
        command = [sys.executable, "-m", "wal2lake", "-c", str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # ---- what is seen from outside

    def table(self, name: str) -> TableStatus | None:
        return next((table for table in Mirror(self.config).tables() if table.name == f"public.{name}"), None)

    def group(self) -> GroupStatus:
        return Mirror(self.config).status().groups[0]

    def is_streaming(self, *names: str) -> None:
        """Wait until a run is under way, not only remembered, and tables follow."""
        running = "RUNNING"
        wait_until(lambda: Mirror(self.config).status().groups[0].state == running, PATIENCE, "the group is running")
        for name in names:
            self._until(name, lambda table: table.state == "STREAMING", "streaming")

    def fails(self, name: str, reason: str = "") -> TableStatus:
        """Wait until a table is ERRORED for a reason with these words in it; how it stands then, with its remedy."""
        table = self._until(
            name, lambda table: table.state == "ERRORED" and reason in str(table.error), f"errored: {reason}"
        )
        assert table.error and table.remedy and table.retry_at is not None
        return table

    def follows(self, *names: str) -> None:
        """Wait until tables are where the source is now, then compare them."""
        position = Lsn.parse(self.database.value("SELECT pg_current_wal_insert_lsn()::text"))
        # A position that no transaction follows is reached at the next keepalive only.
        self.database.execute("SELECT pg_logical_emit_message(true, 'test', '')")

        def there(table: TableStatus) -> bool:
            return table.state == "STREAMING" and table.applied_lsn is not None and table.applied_lsn >= position

        for name in names:
            self._until(name, there, f"at {position}")
        self.equal(*names)

    def becomes_equal(
        self, *names: str, patience: float = PATIENCE, apply_requests: Callable[[TableStatus], object] = lambda _: None
    ) -> None:
        """Wait until tables stream and are equal to a source at rest; DDL that no row follows comes a look later.

        `heed` is told of each table, whenever it is looked at.
        """
        seen = ["not looked at"]

        def look() -> bool:
            wanted = {f"public.{name}" for name in names}
            tables = [table for table in Mirror(self.config).tables() if table.name in wanted]
            for table in tables:
                apply_requests(table)
            late = [table for table in tables if table.state != "STREAMING" or table.lag_seconds]
            seen[0] = str(late or "all stream")
            if late or len(tables) < len(wanted):
                return False
            try:
                self.equal(*names)
            except (AssertionError, ValueError, NoSuchTableError) as error:
                # Columns of different types can't even be compared, and a lake table may be on its way to its name.
                seen[0] = str(error)
                return False
            return True

        wait_until(look, patience, lambda: f"equal: {seen[0]}")

    def confirmed(self) -> Lsn:
        """The acknowledged position of the slot. There must be one."""
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        return Lsn.parse(self.database.value(query, [self.slot]))

    def slot_passes(self, position: Lsn, seconds: float = 30) -> None:
        wait_until(
            lambda: self.confirmed() >= position, seconds, lambda: f"slot at {self.confirmed()}, not at {position}"
        )

    def now(self) -> Lsn:
        return Lsn.parse(self.database.value("SELECT pg_current_wal_insert_lsn()::text"))

    def _until(self, name: str, condition: Callable[[TableStatus], bool], what: str) -> TableStatus:
        def look() -> TableStatus | None:
            table = self.table(name)
            return table if table is not None and condition(table) else None

        found = wait_until(look, PATIENCE, lambda: f"{name} {what}: {self.table(name)}, {self.group()}")
        assert found is not None
        return found


@contextmanager
def blocked(directory: Path) -> Iterator[None]:
    """A file in the place of a directory: nobody can read or write there, not even root."""
    aside = directory.with_name(directory.name + ".aside")
    directory.rename(aside)
    directory.write_text("in the way")
    try:
        yield
    finally:
        directory.unlink()
        aside.rename(directory)


def missed(result: OnceResult) -> dict[str, TableStatus]:
    """Tables that did not get there, by their name without the schema."""
    return {table.name.removeprefix("public."): table for table in result.missed}


def logged_errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the mirror has logged as an error: somebody has to do something about it."""
    return [
        record.getMessage() for record in caplog.records
        if record.name.startswith("wal2lake") and record.levelno >= logging.ERROR
    ]  # fmt: skip


def lines_of_error(text: str) -> list[tuple[str, str]]:
    """The pairs of `Error:` and `Try:` lines on stderr; nothing of Python's own must be there."""
    assert "Traceback" not in text, text
    lines = [line for line in text.splitlines() if line.startswith(("Error: ", "Try: "))]
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    assert all(error.startswith("Error: ") and remedy.startswith("Try: ") for error, remedy in pairs), text
    return pairs
