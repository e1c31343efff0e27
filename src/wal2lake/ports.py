"""Everything outside of the mirror that it uses, as one protocol that a simulation can implement.

`SystemPorts` is the implementation for production: PostgreSQL, a lake on Spark, a change log beside the lake, capture
in a process of its own. Importing it loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from .changelog import ChangeLog, LogStorage, storage_for
from .config import Config, GroupConfig
from .errors import ChangeLogDamaged
from .executor import SYSTEM_EXECUTOR, Executor
from .installation import Installation
from .source import Source, SourceDatabase, TriggerSource
from .state import StateStore, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession  # noqa: TID251 - as a type only

    from .capture import CaptureHandle
    from .lake import LakeTables


class MirrorPorts(Protocol):
    """The caller closes what it gets."""

    @property
    def executor(self) -> Executor: ...

    @property
    def logs(self) -> LogStorage:
        """The place of the change logs of all groups."""

    def store(self, other: bool = False) -> StateStore:
        """The state store. `other`: accept the store of another installation."""

    def source(self, group: GroupConfig) -> SourceDatabase: ...

    def lake(self, on_demand: bool) -> LakeTables:
        """`on_demand`: it is started when it is needed, and not before."""

    def capture(self, group: GroupConfig, on_report: Callable[[], object]) -> CaptureHandle:
        """The capture of a group, with what to call after each report."""


def as_logged(logs: LogStorage, group: GroupConfig) -> GroupConfig:
    """A group with `capture = "auto"` that triggers capture has that mode; any other is as it is."""
    if group.capture == "auto":
        # A damaged log is reported by what reads it.
        with suppress(ChangeLogDamaged):
            if ChangeLog(logs, group.name).by_triggers:
                return group.model_copy(update={"capture": "trigger"})
    return group


class SystemPorts:
    def __init__(self, config: Config, spark: SparkSession | None = None, executor: Executor = SYSTEM_EXECUTOR) -> None:
        """`spark`: a session to work with, which is never stopped; without one a driver is started."""
        self._config, self._spark, self.executor = config, spark, executor

    @property
    def logs(self) -> LogStorage:
        return storage_for(self._config.changelog_path)

    def store(self, other: bool = False) -> StateStore:
        return open_store(self._config, None if other else Installation.of(self._config.changelog_path))

    def source(self, group: GroupConfig) -> SourceDatabase:
        group = as_logged(self.logs, group)
        return (TriggerSource if group.triggers else Source)(self._config, group)

    def lake(self, on_demand: bool) -> LakeTables:
        from .lake import Lake

        return Lake(self._config, self._spark, on_demand)

    def capture(self, group: GroupConfig, on_report: Callable[[], object]) -> CaptureHandle:
        from .capture import CaptureProcess

        return CaptureProcess(self._config, group, on_report, self.executor)
