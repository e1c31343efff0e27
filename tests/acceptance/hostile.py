"""All shapes of a batch in one database and one mirror: copy, changes while it runs, changes while it is down, restart.

Each table ends equal to PostgreSQL's, or is refused with a remedy that is run as printed and ends equal. What is done
is decided by the seed alone; which of it meets the copy, the stream or the catalog's look is not.
"""

from __future__ import annotations

import random
import re
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from mirroring import Mirrored
from psycopg import sql
from pyiceberg.exceptions import NoSuchTableError
from shapes import Shape

from remedies import steps
from servers import Database
from waiting import wait_until
from wal2lake.demo.compare import compare_tables
from wal2lake.mirror import Mirror
from wal2lake.observe.status import TableStatus
from wal2lake.schema import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 300.0
SECONDS_BETWEEN_LOOKS = 2.0
BY_ITSELF = "No action needed"
"""how remedies begin that ask nothing of anybody"""
TABLES = """
    SELECT n.nspname::text, c.relname::text
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = ANY (%s) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
     ORDER BY 1, 2
"""


@dataclass
class Writer:
    """Changes the tables of one shape at random."""

    shape: Shape
    chance: random.Random
    connection: psycopg.Connection[Any]
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._mix = self.shape.mix
        self._steps = list(self.shape.steps)

    def make(self) -> None:
        self._enter(create=True)
        for script in self.shape.make:
            self._tolerantly([script])
        self.burst(4)

    def burst(self, transactions: int) -> None:
        """Some transactions; one that breaks a constraint is rolled back, as are some savepoints."""
        self._enter()
        for _ in range(transactions):
            statements: list[str] = []
            for number in range(self.chance.randint(1, 3)):
                statement = self.shape.fill(self.chance.choice(self._mix), self.chance)
                if self.chance.random() < 0.2:
                    statements += [f"SAVEPOINT s{number}", statement, f"ROLLBACK TO s{number}"]
                else:
                    statements.append(statement)
            self._tolerantly(["BEGIN", *statements, "COMMIT"])

    def steps(self, share: float) -> None:
        """The next steps, about this share of those that are left, with changes in between."""
        count = len(self._steps) if share >= 1 else sum(self.chance.random() < share for _ in self._steps)
        for _ in range(count):
            step = self._steps.pop(0)
            self._enter()
            self._execute(self.shape.fill(step.sql, self.chance))
            self._mix = step.mix or self._mix
            self.burst(2)

    def _enter(self, create: bool = False) -> None:
        name = sql.Identifier(self.shape.name)
        if create:
            self.connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        self.connection.execute(sql.SQL("SET search_path TO {}, public").format(name))

    def _tolerantly(self, statements: Sequence[str]) -> None:
        try:
            for statement in statements:
                self._execute(statement)
        except psycopg.errors.IntegrityError as error:
            self._undo(error)
        except psycopg.errors.ObjectNotInPrerequisiteState as error:
            if not self.shape.loses_identity or "replica identity" not in str(error):
                raise
            self._undo(error)

    def _undo(self, error: psycopg.Error) -> None:
        self.done.append(f"-- {type(error).__name__}")
        if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._execute("ROLLBACK")

    def _execute(self, statement: str) -> None:
        self.done.append(statement)
        try:
            self.connection.execute(statement.encode())
        except psycopg.Error as error:
            error.add_note(f"shape {self.shape.name}: {statement}")
            raise


@dataclass(frozen=True)
class Verdict:
    """How one table stands: equal, refused with a remedy, or neither."""

    table: TableId
    state: str
    difference: str | None = None
    refused: TableStatus | None = None

    @property
    def settled(self) -> bool:
        return self.refused is not None or (self.difference is None and self.state in ("STREAMING", "CATCHUP"))

    def __str__(self) -> str:
        return f"{self.table} is {self.state}: {self.difference or 'equal'}"


class Hostile:
    """A batch of shapes, their mirror, and what is judged of them."""

    def __init__(
        self, database: Database, directory: Path, spark: SparkSession, shapes: Iterable[Shape], seed: int
    ) -> None:
        self._database = database
        self.shapes = {one.name: one for one in shapes if database.value(f"SELECT {one.needs}")}
        connection = database.connect()
        self.writers = [
            Writer(shape, random.Random(f"{seed} {name}"), connection) for name, shape in self.shapes.items()
        ]
        self._group: dict[str, Any] = {"name": "default", "tables": ["*.*"], "exclude": [], "flush_interval": 0.2}
        self.mirrored = Mirrored(database, directory / "lake", spark, groups=[self._group])
        self._settings: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.healed: list[str] = []
        """errors whose remedies were run"""

    def run(self, rounds: int = 1) -> None:
        """The whole way of a batch."""
        began = time.monotonic()

        def passed(what: str) -> None:
            print(f"{time.monotonic() - began:6.1f} s: {what}", flush=True)  # noqa: T201 - shown when it fails

        for writer in self.writers:
            writer.make()
        passed(f"{len(self.writers)} shapes made")
        with self.mirrored.running():
            self._change(0)
            self._await_copies()
            passed("copied")
            for _ in range(rounds):
                self._change(0.6)
                passed("changed while running")
                verdicts = self._settle()
                passed("followed")
        self._heal(verdicts)
        self._change(1)
        passed("changed while down")
        self._catch_up()
        passed(f"caught up; {len(self.healed)} remedies")

    def copy(self) -> None:
        """Make the tables and copy them, no more."""
        for writer in self.writers:
            writer.make()
        assert not self.mirrored.once().missed

    def verdicts(self) -> list[Verdict]:
        """How each table stands now."""
        return list(self._judge(self._tables(), Mirror(self.mirrored.config).tables()))

    # ---- what is done

    def _change(self, share: float) -> None:
        for writer in self.writers:
            writer.burst(2)
            writer.steps(share)

    def _heal(self, verdicts: Iterable[Verdict]) -> bool:
        """Run the remedies of refused tables as they are printed; whether there were any."""
        refused = [verdict.refused for verdict in verdicts if verdict.refused is not None]
        for table in refused:
            self._follow_remedy(table)
        return bool(refused)

    def _follow_remedy(self, table: TableStatus) -> None:
        remedy = str(table.remedy)
        self.healed.append(f"{table.name}: {table.error} Try: {remedy}")
        for name, key, value in re.findall(r"\[tables\.'(.+?)'\] (\w+) = (\{.*?\}) in the configuration", remedy):
            self._settings[name][key] = tomllib.loads(f"{key} = {value}")[key]
            self.mirrored.configure(tables=dict(self._settings))
        if steps(remedy):
            self.mirrored.apply_requests(remedy)
        else:
            self._leave_out(remedy)

    def _leave_out(self, remedy: str) -> None:
        """Where nothing else helps, the remedy is to mirror the table no more."""
        named = re.findall(r"exclude = (\[.+?\]) in", remedy)
        assert named, f"nothing that could be done: {self.healed[-1]}"
        self._group["exclude"] += tomllib.loads(f"exclude = {named[0]}")["exclude"]
        self.mirrored.configure(groups=[self._group])

    # ---- what is judged

    def _await_copies(self) -> None:
        def pending() -> list[TableStatus]:
            tables = Mirror(self.mirrored.config).tables()
            return [one for one in tables if one.state not in ("STREAMING", "DROPPED") and not _refused(one)]

        def copied() -> bool:
            names = {table.name for table in Mirror(self.mirrored.config).tables()}
            return not pending() and {str(table) for table in self._tables()} <= names

        wait_until(copied, PATIENCE, lambda: f"copied: {pending()}")

    def _settle(self) -> list[Verdict]:
        """Wait until each table is equal or refused; a source at rest, so what is equal stays so."""
        seen: dict[TableId, Verdict] = {}
        looked: dict[TableId, float] = {}
        position = self.mirrored.now()
        # A position that no transaction follows is reached at the next keepalive only.
        self._database.execute("SELECT pg_logical_emit_message(true, 'test', '')")

        def worth_a_look(table: TableId, statuses: Sequence[TableStatus]) -> bool:
            """Comparing takes more than asking; what was not equal may have to wait for the next look at the catalog."""
            if table in seen and (seen[table].settled or time.monotonic() - looked[table] < SECONDS_BETWEEN_LOOKS):
                return False
            on_the_way = [one for one in statuses if one.name == str(table) and one.state == "STREAMING"]
            return not any(one.applied_lsn is None or one.applied_lsn < position for one in on_the_way)

        def look() -> bool:
            statuses = Mirror(self.mirrored.config).tables()
            tables = self._tables()
            for verdict in self._judge([table for table in tables if worth_a_look(table, statuses)], statuses):
                seen[verdict.table], looked[verdict.table] = verdict, time.monotonic()
            return all(table in seen and seen[table].settled for table in tables)

        def late() -> str:
            missing = [Verdict(table, "behind") for table in self._tables() if table not in seen]
            return self._tell([*missing, *(verdict for verdict in seen.values() if not verdict.settled)])

        wait_until(look, PATIENCE, late)
        return self._allowed(seen.values())

    def _catch_up(self) -> None:
        """`run --once` ends with each table equal; remedies of those that it names as refused are run, once."""
        for attempt in (1, 2):
            self.mirrored.once()
            verdicts = self.verdicts()
            wrong = [verdict for verdict in verdicts if not verdict.settled]
            assert not wrong, f"after run --once number {attempt}: {self._tell(wrong)}"
            if not self._heal(self._allowed(verdicts)):
                return
        refused = [verdict for verdict in verdicts if verdict.refused]
        raise AssertionError(f"still refused after the remedy: {self._tell(refused)}\n" + "\n".join(self.healed))

    def _tables(self) -> list[TableId]:
        found = [TableId(*row) for row in self._database.rows(TABLES, [list(self.shapes)])]
        return [table for table in found if str(table) not in self._group["exclude"]]

    def _judge(self, tables: Sequence[TableId], statuses: Sequence[TableStatus]) -> Iterable[Verdict]:
        for table in tables:
            same = [one for one in statuses if one.name == str(table)]
            status = next((one for one in same if one.state != "DROPPED"), None)
            if status is None:
                yield Verdict(table, "not mirrored", "not in status")
            elif _refused(status):
                yield Verdict(table, status.state, status.error, status)
            else:
                error = f" ({status.error})" if status.error else ""
                yield Verdict(table, status.state + error, self._difference(table))

    def _difference(self, table: TableId) -> str | None:
        """What the lake table has wrong; None if it is equal."""
        try:
            (found,) = compare_tables(self._database.dsn, self.mirrored.lake, [(table.schema, table.name)])
        except NoSuchTableError:
            return "no lake table"
        except (ValueError, psycopg.errors.UndefinedTable) as error:
            return f"not comparable: {error}"
        unmirrored = set(found.columns_only_in_source) == self.shapes[table.schema].unmirrored
        equal = unmirrored and not (found.missing or found.extra or found.columns_only_in_lake)
        return None if equal else str(found)

    def _allowed(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Verdicts, none of which is a refusal that its shape does not expect."""
        found = list(verdicts)
        for verdict in found:
            if verdict.refused is not None:
                expected = self.shapes[verdict.table.schema].refusal
                assert expected and expected in str(verdict.refused.error), self._tell([verdict])
        return found

    def _tell(self, verdicts: Iterable[Verdict]) -> str:
        told = []
        for verdict in verdicts:
            (writer,) = [one for one in self.writers if one.shape.name == verdict.table.schema]
            told += [str(verdict), *(f"      {statement}" for statement in writer.done[-60:])]
        return "\n".join(told)


def _refused(table: TableStatus) -> bool:
    """Whether a table waits for somebody to do something."""
    return table.state == "ERRORED" and not str(table.remedy).startswith(BY_ITSELF)
