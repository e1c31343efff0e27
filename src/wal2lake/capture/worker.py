"""Capture of one group, as long as it is wanted: a session after the other, and what is told of them.

A session follows the stream from the change log's position. After any failure the next one begins there again, with
what no manifest names swept away: nothing is lost, nothing repeated.
"""

from __future__ import annotations

import errno
import logging
import random
import select
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..changelog import ChangeLog, Manifest
from ..config import Config, GroupConfig
from ..decode import TextNeeded, readable
from ..errors import (
    CaptureError,
    ChangeLogDamaged,
    ConnectionFailed,
    Kind,
    LakeUnwritable,
    SlotLost,
    SourceError,
    SourceRestored,
    Wal2LakeError,
    advise,
)
from ..position import ZERO, Lsn
from ..retry import CAPTURE
from ..source import Connection, ServerFacts, connect, publication, selection, server_facts, slot, timeline
from ..source.stream import Patience, ReplicationStream
from ..state import logged_in
from .replication import REPORT_SECONDS, Session
from .report import CaptureReport, CaptureState, Owner

log = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)


class CaptureWorker:
    """Runs sessions until it is told to stop or an error stays."""

    def __init__(self, config: Config, group: GroupConfig, owner: Owner, patience: Patience | None = None) -> None:
        self.config = config.model_copy(update={"tables": config.tables_of(group)})
        self.group, self.owner, self.patience = group, owner, patience
        self.changelog = ChangeLog(config.changelog_path, group.name)
        self.publication = publication.used_by(group)
        self.appending = publication.append_name(group.name)
        self.report = CaptureReport()
        self._failures = 0
        self._needs_text = False
        self._reported_at = 0.0
        self._unreported = True

    @property
    def slot(self) -> str:
        return self.changelog.origin.slot

    def run(self) -> None:
        while not self.owner.stopping:
            try:
                with self.changelog.held():
                    self._session()
            except TextNeeded as needed:
                log.info("capture of group %s: values are read as text from here on, for a %s", self.group.name, needed)
                self._needs_text = True
            except Exception as error:
                if not self._failed(error):
                    return
                self._pause()
        self.update(True, state=CaptureState.STOPPED)

    def update(self, urgent: bool = False, /, **changes: Any) -> None:
        """Note progress; passed on at once when urgent, else a few times a second."""
        report = replace(self.report, **changes)
        if report != self.report:
            self.report, self._unreported = report, True
        now = time.monotonic()
        if self._unreported and (urgent or now - self._reported_at >= REPORT_SECONDS):
            self._unreported = not self.owner.send_report(self.report)
            self._reported_at = now

    def streaming(self, last: Manifest | None, **positions: Lsn) -> None:
        """The stream is open, which is the end of an error of the connection, and of no other."""
        error = None if isinstance(self.report.error, ConnectionFailed) else self.report.error
        self.update(
            True, state=CaptureState.STREAMING, error=error, connected_once=True, manifest=last.number if last else 0,
            commit_ts=last.commit_ts if last else None, **positions,
        )  # fmt: skip

    def proven(self) -> None:
        """Something has become durable, or the session has lasted: the next failure is a first one."""
        self._failures = 0
        if self.report.error is not None:
            self.update(True, error=None)

    @property
    def unreported(self) -> bool:
        return self._unreported

    def _session(self) -> None:
        with connect(self.config.source, self.group.name) as conn:
            start = self._verify(conn)
            appends = self.changelog.appends_since()
            also = (self.appending,) if appends is not None and appends <= start else ()
            self._require_publications(conn, also, start)
            binary = self._takes_binary(conn, also)
        swept = self.changelog.sweep()
        if swept:
            log.info("change log of group %s: %d files without a manifest removed", self.group.name, swept)
        source = self.config.source
        if selection.masked(self.config.tables):
            # A transaction that comes before its commit is kept on disk as it came, and that is unmasked.
            source = source.model_copy(update={"streaming": False})
        with ReplicationStream(
            source, self.slot, self.publication, start, group=self.group.name, patience=self.patience, binary=binary,
            also=also,
        ) as stream:  # fmt: skip
            self.update(appends=bool(also))
            session = Session(self, stream, start)
            try:
                session.follow()
                stream.finish()
            finally:
                session.close()

    def reopens(self, acknowledged: Lsn) -> bool:
        """Whether the stream can have the publication of append-only tables now, and was opened without it."""
        since = self.changelog.appends_since() if not self.report.appends else None
        return since is not None and since <= acknowledged

    def _takes_binary(self, conn: Connection, also: Sequence[str]) -> bool:
        """Whether values are asked for in binary form. That a column in the WAL needs text may still turn out."""
        if self._needs_text or not self.config.source.binary or selection.masked(self.config.tables):
            # A hash is that of the text.
            return False
        types = [one for name in (self.publication, *also) for one in publication.types_in(conn, name)]
        return all(readable(oid, typmod) for oid, typmod in types)

    def _verify(self, conn: Connection) -> Lsn:
        """The position to stream from, if the slot and the log belong together."""
        position = self.changelog.position()
        facts = server_facts(conn)
        self.changelog.must_be_from(facts)
        self._require_not_set_back(conn, facts, position)
        info = slot.info(conn, self.slot)
        if info is None:
            raise SlotLost(slot=self.slot, cause="does not exist", lsn=position)
        if info.lost is not None:
            raise SlotLost(slot=self.slot, cause=info.lost, lsn=position)
        confirmed = info.confirmed_flush_lsn
        if confirmed is None or info.plugin != "pgoutput" or info.database != facts.database:
            raise SlotLost(slot=self.slot, cause="was replaced by another one of that name", lsn=position)
        acknowledged = self._acknowledged(conn, confirmed)
        if confirmed > acknowledged:
            cause = f"was moved or re-created by somebody else (to {confirmed})"
            raise SlotLost(slot=self.slot, cause=cause, lsn=acknowledged)
        return max(position, confirmed)

    def _acknowledged(self, conn: Connection, confirmed: Lsn) -> Lsn:
        """The highest position that the slot may have been told. A record that is damaged is made again if it can be.

        What the state store in the same database, or the log's witness, has of the position was captured by us.
        """
        try:
            return self.changelog.acknowledged()
        except ChangeLogDamaged:
            known = logged_in(conn, self.group.name) if self.config.state.dsn is None else None
            ours = max(self.changelog.position(), known or ZERO, self.changelog.witness.stored() or ZERO)
            if confirmed > ours:
                raise
            self.changelog.record_acknowledged(ours)
            log.warning("change log of group %s: acknowledged.json was damaged, and is made again", self.group.name)
            return ours

    def _require_publications(self, conn: Connection, also: Sequence[str], position: Lsn) -> None:
        for name in (self.publication, *also):
            if not publication.exists(conn, name):
                raise SlotLost(slot=self.slot, cause=f"has no publication {name}", lsn=position)

    def _require_not_set_back(self, conn: Connection, facts: ServerFacts, position: Lsn) -> None:
        """Refuse a database that has forgotten what was captured from it; its slot may look as if nothing was wrong."""
        witness, cause = self.changelog.witness, None
        if facts.wal_end < position:
            cause = f"its WAL ends at {facts.wal_end}, the log holds changes up to {position}"
        elif (stored := witness.stored()) is not None:
            # Looked at again, because the run writes it meanwhile, after the database.
            known = logged_in(conn, self.group.name)
            if known is not None and known < stored == witness.stored():
                cause = f"it knew of position {stored}, and knows of {known} only"
        before, now = witness.timeline(), facts.timeline
        if cause is None and before is not None and now not in (None, before):
            left = timeline.left_at(self.config.source, now, before)
            if left is None or left < position:
                cause = f"timeline {now} left timeline {before} at {left or 'no time'}, the log is at {position}"
        if cause is not None:
            raise SourceRestored(group=self.group.name, cause=cause)
        if now is not None and now != before:
            witness.on_timeline(now)

    def _failed(self, error: Exception) -> bool:
        """Report an error; whether to try again."""
        known = self._known(error)
        again = known.kind is not Kind.CONFIGURATION or type(known) is SourceError
        log.warning("capture of group %s: %s", self.group.name, known)
        log.debug("capture of group %s failed", self.group.name, exc_info=error)
        state = CaptureState.RECONNECTING if again else CaptureState.FAILED
        self.update(True, state=state, error=known)
        return again

    def _known(self, error: Exception) -> Wal2LakeError:
        if isinstance(error, Wal2LakeError):
            return error
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return LakeUnwritable(path=error.filename or str(self.changelog.directory), cause=error.strerror)
        return CaptureError(group=self.group.name, cause=advise(error).message)

    def _pause(self) -> None:
        self._failures += 1
        delay = CAPTURE.after(self._failures, random.random())
        until = time.monotonic() + delay
        poll = select.poll()
        for fd in self.owner.wake:
            poll.register(fd, select.POLLIN)
        while not self.owner.stopping and (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000):
                self.owner.poll_commands()
