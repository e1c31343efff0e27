"""Capture from a replication slot of PostgreSQL: the stream, and the sessions beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..changelog import ChangeLog, storage_for
from ..config import PGOUTPUT, Config, GroupConfig, SourceConfig
from ..position import Lsn
from ..retry import CAPTURE, POLL
from ..source import (
    CaptureSource,
    ChangeSource,
    PostgresCatalog,
    ServerFacts,
    StreamRequest,
    WholeRows,
    alive,
    connect,
    follow_columns,
    mark,
    server_facts,
    wal_end,
)
from ..source.polling import open_polling
from ..source.publishing import (
    SlotInfo,
    publication_exists,
    published_types,
    slot_info,
    slot_name,
    timeline_left_at,
    timeline_left_at_through_sql,
)
from ..source.streaming import StreamTimeouts, open_stream
from ..source.triggers import BufferedStream, TriggerStream, buffered_types, lane_info
from ..state.postgres import logged_in


def capture_source(config: Config, group: GroupConfig, patience: StreamTimeouts | None = None) -> CaptureSource:
    """Connects the capture worker with PostgreSQL."""
    source = config.source
    if group.triggers:
        return _triggers(config, group)

    def opened(request: StreamRequest) -> ChangeSource:
        stream: ChangeSource
        if group.polls:
            stream = open_polling(source, request, group.name)
        else:
            stream = open_stream(source, request, group.name, patience)
        # Nothing is published by its buffer in the others.
        filled = source.plugin == PGOUTPUT and group.publication is None and not group.leafwise
        return BufferedStream(stream, source, group.name) if filled else stream

    return CaptureSource(
        open=opened,
        catalog=partial(PostgresCatalog, source, group.name),
        control=partial(PostgresControl, source, group.name, group.polls),
        retry=POLL if group.polls else CAPTURE,
    )


def _triggers(config: Config, group: GroupConfig) -> CaptureSource:
    """Capture from the buffers that triggers fill."""
    streams: list[TriggerStream] = []
    settings = config.tables_of(group)

    def open_stream(request: StreamRequest) -> TriggerStream:
        log = ChangeLog(storage_for(config.changelog_path), group.name)
        follow = partial(follow_columns, lane=request.slot, settings=settings)
        streams[:] = [TriggerStream.of(config.source, group.name, request, log.token(), follow)]
        return streams[0]

    def token(lsn: Lsn) -> str | None:
        return streams[0].token(lsn) if streams else None

    return CaptureSource(
        open=open_stream,
        catalog=partial(WholeRows, config.source, group.name),
        control=partial(TriggerControl, config.source, group.name, True),
        token=token,
    )


class PostgresControl:
    """Implements ControlSession."""

    def __init__(self, source: SourceConfig, group: str, polls: bool = False) -> None:
        """`polls`: there may be no replication connection."""
        self._source, self._group, self._polls = source, group, polls
        self._conn = connect(source, group)

    def facts(self) -> ServerFacts:
        return server_facts(self._conn)

    def slot(self, name: str) -> SlotInfo | None:
        return slot_info(self._conn, name)

    def has_publication(self, name: str) -> bool:
        return publication_exists(self._conn, name)

    def published_types(self, name: str) -> Sequence[tuple[int, int]]:
        buffered = buffered_types(self._conn, slot_name(self._group, self._conn.info.dbname))
        return [*published_types(self._conn, name), *buffered]

    def known_position(self, group: str) -> Lsn | None:
        return logged_in(self._conn, group)

    def timeline_left_at(self, current: int, earlier: int) -> Lsn | None:
        if self._polls:
            return timeline_left_at_through_sql(self._conn, current, earlier)
        return timeline_left_at(self._source, current, earlier)

    def wal_end(self) -> Lsn:
        return wal_end(self._conn)

    def mark(self) -> Lsn:
        return mark(self._conn)

    def alive(self) -> bool:
        return alive(self._conn)

    @property
    def closed(self) -> bool:
        return self._conn.closed

    def fileno(self) -> int | None:
        return self._conn.fileno()

    def close(self) -> None:
        self._conn.close()


class TriggerControl(PostgresControl):
    """The same without a slot and without publications."""

    def slot(self, name: str) -> SlotInfo | None:
        return lane_info(self._conn, name)

    def has_publication(self, name: str) -> bool:  # noqa: ARG002 - the contract
        return True

    def published_types(self, name: str) -> Sequence[tuple[int, int]]:  # noqa: ARG002 - the contract
        """Those of the columns that the buffers have."""
        return buffered_types(self._conn, slot_name(self._group, self._conn.info.dbname))
