"""Output of the demo: a live table on a terminal, otherwise lines, and the result."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..observe import TableStatus
    from .compare import Comparison

LINE_SECONDS = 5.0


class Show:
    """Writes to stdout."""

    def __init__(self, console: Console | None = None) -> None:
        width = None if sys.stdout.isatty() else 200
        self.console = console or Console(highlight=False, markup=False, width=width)
        self._live: Live | None = None
        self._next_line = 0.0

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """On a terminal, redraw the tables that are shown inside in place."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def tables(self, tables: Sequence[TableStatus], elapsed: float, transactions: int) -> None:
        title = f"{elapsed:.0f} s, {transactions} transactions in the shop"
        if self._live is not None:
            self._live.update(_view(tables, title), refresh=True)
        elif elapsed >= self._next_line:
            self._next_line = elapsed + LINE_SECONDS
            self.say(f"{title}: " + ("; ".join(map(_line, tables)) or "the mirror is starting"))

    def verdict(self, compared: Iterable[Comparison]) -> None:
        for comparison in compared:
            self.say(f"  {comparison}")

    def how_to_read(self, lake: Path, packages: str) -> None:
        """Print code to paste that reads the lake in any Python with the package."""
        self.say(f"\nThe lake stays at {lake}\n\nRead it with PySpark:\n")
        for line in pyspark_lines(lake, packages):
            self.say(f"    {line}")
        self.say("\nor with pyiceberg, without Spark:\n")
        for line in pyiceberg_lines(lake):
            self.say(f"    {line}")


def pyspark_lines(lake: Path, packages: str) -> tuple[str, str, str]:
    settings = {
        "spark.jars.packages": packages,
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{lake}/catalog.db",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.warehouse": str(lake),
    }
    return (
        "from pyspark.sql import SparkSession",
        f"spark = SparkSession.builder.config(map={settings!r}).getOrCreate()",
        "spark.table('lake.public.orders').show()",
    )


def pyiceberg_lines(lake: Path) -> tuple[str, str, str]:
    return (
        "from pyiceberg.catalog.sql import SqlCatalog",
        f"catalog = SqlCatalog('lake', uri='sqlite:///{lake}/catalog.db', warehouse='{lake}')",
        "print(catalog.load_table('public.orders').scan().to_arrow())",
    )


def _view(tables: Sequence[TableStatus], title: str) -> Table:
    errors = "\n".join(f"{table.name}: {table.error}" for table in tables if table.error)
    view = Table(
        title=title,
        title_justify="left",
        caption=errors or None,
        caption_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    view.add_column("table", min_width=22)
    view.add_column("state", min_width=10)
    for heading in ("rows", "changes applied", "seconds behind"):
        view.add_column(heading, justify="right")
    for table in tables:
        state = Text(table.state, style={"STREAMING": "green", "ERRORED": "red"}.get(table.state, "yellow"))
        rows = "-" if table.rows is None else f"{table.rows:,}"
        behind = "-" if table.lag_seconds is None else f"{table.lag_seconds:.1f}"
        view.add_row(table.name, state, rows, f"{table.changes_applied:,}", behind)
    return view


def _line(table: TableStatus) -> str:
    rows = "no rows yet" if table.rows is None else f"{table.rows} rows"
    line = f"{table.name} {table.state}, {rows}, {table.changes_applied} changes"
    if table.lag_seconds is not None:
        line += f", {table.lag_seconds:.1f} s behind"
    return f"{line} ({table.error})" if table.error else line
