"""Progress of initial copies on a terminal: a bar per table, with rows and rate. In a pipe there are log lines only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from ..observe import Progress as CopyProgress
from ..observe import Silent


class _Rows(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed or 0
        return Text(f"{int(task.completed):>12,} rows {rate:>10,.0f}/s", style="progress.download")


class ConsoleProgress:
    """Draws bars while tables are copied, and nothing otherwise."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.RLock()
        self._tasks: dict[str, TaskID] = {}
        self.bars: Progress | None = None

    def copy_started(self, table: str, estimated_rows: int) -> None:
        with self._lock:
            self._remove(table)
            if self.bars is None:
                self.bars = Progress(
                    SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), _Rows(),
                    console=self._console, transient=True,
                )  # fmt: skip
                self.bars.start()
            self._tasks[table] = self.bars.add_task(table, total=estimated_rows or None)

    def copy_advanced(self, table: str, rows: int) -> None:
        with self._lock:
            task = self._tasks.get(table)
            if task is None or self.bars is None:
                return
            total = next((bar.total for bar in self.bars.tasks if bar.id == task), None)
            # The estimate may be too low, and a full bar would look finished.
            self.bars.update(task, completed=rows, total=None if total is None else max(total, rows * 1.1))

    def copy_finished(self, table: str, rows: int) -> None:
        with self._lock:
            self.copy_advanced(table, rows)
            self._end(table)

    def copy_failed(self, table: str) -> None:
        with self._lock:
            self._end(table)

    def stop(self) -> None:
        with self._lock:
            self._tasks.clear()
            if self.bars is not None:
                self.bars.stop()
                self.bars = None

    def _end(self, table: str) -> None:
        self._remove(table)
        if not self._tasks:
            self.stop()

    def _remove(self, table: str) -> None:
        task = self._tasks.pop(table, None)
        if task is not None and self.bars is not None:
            self.bars.remove_task(task)


@contextmanager
def copy_progress(console: Console) -> Iterator[CopyProgress]:
    """Bars on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield Silent()
        return
    progress = ConsoleProgress(console)
    try:
        yield progress
    finally:
        progress.stop()
