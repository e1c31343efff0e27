"""A stream of a slot in which some tables are captured by triggers: their buffers are published, and come as tables.

What triggers write is in the WAL, in the transaction of the writer. So there is one stream with one position, and the
rows of a buffer may be deleted as soon as they are committed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...config import SourceConfig
from ...decode import Messages
from ...position import Lsn
from ...schema import TableId
from ..ports import Capabilities, ChangeSource
from ..sessions.closing import Closing
from ..sessions.connect import explained
from ..sessions.reopened import ReopenedSession
from . import installing
from .translation import BufferTranslator, Captured

log = logging.getLogger(__name__)

_LIMIT_SECONDS = 5


class BufferedStream(Closing):
    """Implements ChangeSource around the stream of a slot."""

    def __init__(self, stream: ChangeSource, source: SourceConfig, group: str) -> None:
        self._stream = stream
        self._session = ReopenedSession(source, group, _LIMIT_SECONDS)
        self._translator = BufferTranslator(self._find)

    @property
    def capabilities(self) -> Capabilities:
        return self._stream.capabilities

    @property
    def received(self) -> Lsn:
        return self._stream.received

    @property
    def keepalive_lsn(self) -> Lsn:
        return self._stream.keepalive_lsn

    @property
    def acknowledged(self) -> Lsn:
        return self._stream.acknowledged

    @property
    def awaits_acknowledgement(self) -> bool:
        return self._stream.awaits_acknowledgement

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        messages = self._stream.read(timeout, wake)
        return self._translator.translate(messages) if messages else messages

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        self._stream.stay(timeout, wake)

    def ask(self) -> None:
        self._stream.ask()

    def acknowledge(self, lsn: Lsn) -> None:
        self._stream.acknowledge(lsn)

    def finish(self, timeout: float = 2.0) -> None:
        self._stream.finish(timeout)

    def close(self) -> None:
        self._stream.close()
        self._session.close()

    def _find(self, relid: int, generation: int) -> Captured | None:
        """What a buffer holds. Its definition is kept until the slot has passed the last of its rows."""
        conn = self._session.get()
        for buffer in installing.all_buffers(conn, relid):
            if buffer.generation == generation:
                return Captured(relid, self._name(relid), buffer.columns)
        # Its table is not mirrored any more, or is re-copied after this: it was taken from the mirror with its buffer.
        log.info("a buffer of relation %d is gone: its rows are left out", relid)
        return None

    def _name(self, relid: int) -> TableId:
        with explained("reading", "the names of tables"):
            row = self._session.get().execute(
                "SELECT n.nspname::text, c.relname::text FROM pg_class c"
                " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s", [relid],
            ).fetchone()  # fmt: skip
        return TableId(*row) if row is not None else TableId("wal2lake_changes", str(relid))
