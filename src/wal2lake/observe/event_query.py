"""Which events are asked for, and the forms in which they are given. What reads them is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..changelog import ChangeLog
from ..executor import Event
from .tail import Change

if TYPE_CHECKING:
    from .events import Events


@dataclass(frozen=True)
class EventQuery:
    """Which events are asked for; see `Mirror.events`."""

    tables: Sequence[str] = ()
    start: str = "now"
    group: str | None = None
    ops: Sequence[str] = ()
    limit: int | None = None
    follow: bool = True


class EventReader:
    """Reads the events of some logs, from where they stand when it is made. `oids`: of the tables; None: all."""

    def __init__(
        self, query: EventQuery, logs: Sequence[ChangeLog], oids: Collection[int] | None, stop: Event
    ) -> None:  # fmt: skip
        from . import events

        begin, operations = events.parse_start(query.start), events.parse_operations(query.ops)
        opened = [events.EventLog(log, begin, oids, operations) for log in events.one_log(logs, begin)]
        self._limit = query.limit
        self._stream: Iterator[Events] = events.follow(opened, stop if query.follow else None)

    def dictionaries(self) -> Iterator[dict[str, Any]]:
        """Flat events with Python's values."""
        from .flat_dicts import dictionaries

        return islice((event for events in self._stream for event in dictionaries(events)), self._limit)

    def lines(self) -> Iterator[bytes]:
        """Flat events as lines of JSON, many at a time."""
        from .flat_json import limited_lines

        return limited_lines(self._stream, self._limit)

    def changes(self) -> Iterator[Change]:
        """In the form of `captured_changes`."""
        from .nested import changes

        return islice((change for events in self._stream for change in changes(events)), self._limit)


def chosen(logs: Sequence[ChangeLog], group: str | None) -> Sequence[ChangeLog]:
    """The logs of a group; None: of all."""
    from .events import chosen

    return chosen(logs, group)
