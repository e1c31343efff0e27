"""Progress of initial copies. The library shows nothing; the command line draws a bar per table."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called by copies, from any thread. An implementation returns at once and never raises."""

    def copy_started(self, table: str, estimated_rows: int) -> None:
        """The estimate is PostgreSQL's own and may be 0 or far off."""

    def copy_advanced(self, table: str, rows: int) -> None:
        """`rows` have been read since the copy started; it never goes down."""

    def copy_finished(self, table: str, rows: int) -> None:
        """The lake has the copy, of `rows` rows."""

    def copy_failed(self, table: str) -> None:
        """The copy ended without a result; it may be started again later."""


class Silent:
    """Shows nothing."""

    def copy_started(self, table: str, estimated_rows: int) -> None:
        pass

    def copy_advanced(self, table: str, rows: int) -> None:
        pass

    def copy_finished(self, table: str, rows: int) -> None:
        pass

    def copy_failed(self, table: str) -> None:
        pass
