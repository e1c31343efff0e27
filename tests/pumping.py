"""A pump in this process, on a thread, so that a test can stand at its named points."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from capturing import PATIENCE, CapturedGroup
from wal2lake.control.pump import CaptureReport, Pump
from wal2lake.position import ZERO, Lsn
from wal2lake.source import connect, mark


class RunningPump:
    """Follows the group's stream until the end of the `with` block."""

    def __init__(self, group: CapturedGroup) -> None:
        self._config = group.config
        self._read, self._write = os.pipe()
        self.wake: Sequence[int] = (self._read,)
        self.stopping = False
        self._hurried: Lsn | None = None
        self._changed = threading.Condition()
        self.reports: list[CaptureReport] = []
        self._thread = threading.Thread(target=Pump(group.config, group.group, self).run)

    def attend(self) -> Lsn | None:
        hurried, self._hurried = self._hurried, None
        if hurried is not None:
            os.read(self._read, 100)
        return hurried

    def tell(self, report: CaptureReport) -> bool:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()
        return True

    def hurry(self, until: Lsn = ZERO) -> None:
        self._hurried = until
        os.write(self._write, b"x")

    def wait_for(self, condition: Callable[[CaptureReport], bool]) -> CaptureReport:
        with self._changed:
            found = self._changed.wait_for(lambda: bool(self.reports) and condition(self.reports[-1]), PATIENCE)
        assert found, self.reports[-1:]
        return self.reports[-1]

    def catch_up(self) -> CaptureReport:
        """Wait until all that is committed now is logged."""
        with connect(self._config.source) as conn:
            until = mark(conn)
        self.hurry(until)
        return self.wait_for(lambda report: report.logged_lsn >= until or report.fatal)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping = True
        os.write(self._write, b"x")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)
