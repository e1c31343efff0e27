"""The ports of the state store: `StateStore`, and the `Lease` and `Listener` that it creates.

`postgres/` implements them on a PostgreSQL server, `memory.py` in one process; tests/contract/test_state_store.py
runs against both.

Applied positions are never read from here: they are in the lake's own commits. An outdated record misleads only its
reader. For every method of a store:

- It is one transaction: all of it happens or nothing. Two writers of one row are serialized; each sees what the other
  has committed.
- It may be called from any thread. It raises ConnectionFailed if the server does not answer; then it is unknown whether
  the work was done, and the call can be repeated safely. The next call connects again.
- Without a store it raises SourceError, unless its docstring says otherwise. SourceRefused: the role lacks privileges.
- Missing rows are left out of results; a change to a missing row does nothing.
- Times are the server's, in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from ..position import LakeVersion, Lsn
from ..schema import TableId
from .records import AppendCounts, GroupRecord, GroupSpec, HistoryEntry, TableRecord, TableSpec

LEASE_SECONDS = 10.0
"""a lease that was not confirmed for so long may have been taken by another process"""
KEPT_ENTRIES = 50
"""of the history of each table"""


class Listener(Protocol):
    """Notifications of commands, for a process that runs groups. It has a session of its own.

    One thread waits; another one may release it, which ends the wait.
    """

    def take(self) -> None:
        """Open the session; requests from here on are received. Raises ConnectionFailed."""

    def wait(self, seconds: float) -> bool:
        """Wait for a notification; True if something was requested since the last call, at once if that was before.

        Several requests may be received as one. False after `seconds`, and when the session was lost: the next call
        opens it again and raises what `take` raises. Requests in between are not received, so callers also check from
        time to time. Works without a store.
        """

    def release(self) -> None:
        """Close the session, if there is one, or as soon as another thread has opened it. `take` opens it again, `wait`
        does not."""


class Lease(Listener, Protocol):
    """The right to run a group, which one session has at a time, over all processes that use the server.

    It lasts as long as its session: the server ends it when it is released, or when the session is lost. It receives
    notifications like any Listener. Leases work without a store, because a store is created under a lease. One thread
    waits; all other methods may be called from any thread.
    """

    @property
    def holder(self) -> str:
        """The name of this process, which others see when they are refused."""

    @property
    def held(self) -> bool:
        """Whether it was taken, and no loss was noticed since. `wait` notices a loss."""

    @property
    def recent(self) -> bool:
        """Whether `take` or `wait` confirmed it less than LEASE_SECONDS ago; check it before work begins."""

    @property
    def epoch(self) -> int:
        """The fencing number of this holder, higher than those of all earlier ones; 0: never held with a store.

        Every lake commit carries it: a writer with an older one must not commit any more.
        """

    def take(self) -> None:
        """Take the group, with a higher epoch if there is a store. Raises GroupHeld with the name of the holder."""

    def wait(self, seconds: float) -> bool:
        """As for a Listener, and confirm that the lease is held: False with `held` False if it was lost.

        A lost lease is taken again by the next call, with a higher epoch, or raises GroupHeld.
        """

    def raise_epoch(self, above: int = -1) -> int:
        """The epoch; a new one is made if there is none, or if it is not higher than `above`.

        Raises GroupHeld if the lease is lost, noticed or not; SourceError if there is no store.
        """

    def release(self) -> None:
        """Release the group at once, or as soon as another thread has taken it: `wait` does not take it again.

        The epoch is kept, so that the next one is higher.
        """


class RecordStore(Protocol):
    """Records of groups and tables: written by the run that holds the group, read by everyone."""

    def groups(self) -> list[GroupRecord]:
        """Every group that has run, by name."""

    def save_group(self, group: GroupRecord) -> None:
        """Write a record; a `logged_lsn` of None keeps the stored one. Durable on return."""

    def tables(self, group: str | None = None) -> list[TableRecord]:
        """The tables of a group, or of all; by group, schema and name."""

    def save_tables(self, tables: Iterable[TableRecord]) -> None:
        """Write any number of records, each table once. Durable on return, because captured changes are deleted then.

        For a new table an initial copy is requested. Requests for copies are kept.
        """

    def claim_tables(self, tables: Iterable[TableRecord], copy: bool = True) -> set[int]:
        """Write records of tables that belong to no group, and return them; if two groups claim one, one gets it.

        Initial copies are requested for them, unless `copy` is False.
        """

    def forget_tables(self, group: str, oids: Iterable[int]) -> None:
        """Delete the records of tables of a group, and requests for their copies."""

    def append_counts(self, group: str) -> dict[int, AppendCounts]:
        """Stored counts of the group's append-only tables; tables that were never counted are missing."""

    def count_appends(self, group: str, oid: int, counts: Mapping[int, int]) -> None:
        """Store what PostgreSQL has counted, by heap, before a table is copied; clears `updates_seen`."""

    def updates_seen(self, group: str, oid: int) -> None:
        """Store that an append-only table was updated; the first time is kept."""


class ResyncStore(Protocol):
    """Requests for copies: made by commands and runs, ended by the run that copied the table."""

    def request_resync(
        self, tables: Iterable[TableRecord], together: str | None = None, quietly: bool = False
    ) -> datetime:  # fmt: skip
        """Request copies of tables, and notify; returns the time of the request, later than all earlier ones for them.

        Tables that are requested with the same word `together` are copied at one common snapshot. `quietly`: without a
        notification, for a run that finds out about its own tables. It would wake itself.
        """

    def requested_resyncs(self, group: str) -> dict[int, datetime]:
        """Tables with a requested copy, and the time of the request; new tables are included."""

    def rounds(self, group: str) -> dict[int, str]:
        """The word of tables that are to be copied together with others."""

    def resync_done(self, group: str, oid: int, wanted: datetime | None) -> None:
        """End the request of that time and earlier ones; one that was made during the copy stays. None: no request.

        Called only after the copy is committed, so that a crash before it copies again. A table that was added with
        --no-copy counts as copied from here on.
        """


class SpecStore(Protocol):
    """Desired state: written by commands, read by runs. Every change notifies, unless stated otherwise."""

    def table_specs(self) -> dict[int, TableSpec]:
        """Specs of tables by commands, by oid."""

    def set_table_spec(self, oid: int, id: TableId, changes: Mapping[str, Any]) -> None:
        """Change fields of a TableSpec, named as there; the others stay, or have their defaults in a new one."""

    def inherit_spec(self, oid: int, successor: int) -> None:
        """Give the spec of a dropped table to the one with its name, unless that has one; a move is ended.

        Called by the run, so it does not notify.
        """

    def request_resume(self, tables: Iterable[tuple[int, TableId]]) -> None:
        """Unpause tables, and retry those that wait after an error at once."""

    def drop_lake(self, oid: int, drop: Callable[[], object]) -> bool:
        """Call `drop` for the lake table of a removed table if that is still requested; return whether it was.

        A command that changes the table's spec waits until it has ended; others do not. If `drop` raises, the request
        stays. Does not notify.
        """

    def group_specs(self) -> dict[str, GroupSpec]:
        """Specs of groups by commands, by name and in its order."""

    def set_group_spec(self, spec: GroupSpec) -> None:
        """Write the whole spec of a group."""

    def forget_group(self, name: str) -> None:
        """Delete everything about a group: its record, its spec, its tables and the specs of those that were added.

        Tables that were moving to it stay where they are; those that were moving from it are copied in their new group.
        """


class MoveStore(Protocol):
    """A table that moves from one group to another (`TableSpec.moving_from`): written by the runs of both."""

    def note_handover(self, oid: int, position: Lsn) -> None:
        """The new group captures the table completely from this position on; the first call counts. Notifies."""

    def void_handovers(self, group: str, oids: Collection[int]) -> frozenset[int]:
        """The new group does not capture these tables at the moment: their handover positions do not count any more.

        What was handed over already, or is on the basis of such a position, is copied. Returns those of them whose
        move to this group has not ended.
        """

    def note_handed(self, oid: int, group: str, position: Lsn, version: LakeVersion) -> None:
        """The old group has applied the table up to this position and has deleted its record. Notifies.

        Stored as 0/0, with which it needs a copy, if the position is not beyond the handover position.
        """

    def take_over(self, table: TableRecord) -> datetime | None:
        """Claim a table that was handed over; return the time of its copy request, which `end_take_over` may cancel.

        May be called again after a crash. None if a command has changed the spec meanwhile.
        """

    def end_take_over(self, oid: int, group: str, copied: bool) -> bool:
        """End the move; `copied`: the lake table is continued without a copy. Notifies.

        False, without a change, if a command has changed the spec meanwhile or the move has ended, and with `copied`
        if its position does not count any more.
        """


class HistoryStore(Protocol):
    """Events of tables: written by runs and commands, read by `tables history`."""

    def add_history(self, entries: Sequence[HistoryEntry]) -> None:
        """Add entries; the last KEPT_ENTRIES of each table are kept."""

    def history(self, id: TableId) -> list[HistoryEntry]:
        """Entries of tables that have, or had, this name, oldest first."""


class StateStore(RecordStore, ResyncStore, SpecStore, MoveStore, HistoryStore, Protocol):
    """The state store for one process, and the leases and listeners of its server.

    It is opened for an installation: `create` makes it that installation's own, and others are refused.
    """

    def exists(self) -> bool:
        """Whether there is a store, of any version."""

    @property
    def usable(self) -> bool:
        """Whether there is a store with everything that this version reads."""

    def create(self) -> None:
        """Create the store if there is none, migrate an older one, and store its owner.

        Several processes may do so at once. Gives the installation an id if it has none. Raises OtherInstallation.
        """

    def require_own(self) -> None:
        """Raise OtherInstallation if the store belongs to another installation; do nothing if there is none.

        A lake that was deleted and created again in the same place is the same owner.
        """

    def drop(self) -> None:
        """Delete the store with its contents, whoever owns it, if there is one. Leases stay."""

    def lease(self, group: str) -> Lease:
        """The lease of a group on this server, not taken yet."""

    def listener(self) -> Listener:
        """A listener on this server, not taken yet."""

    def holder(self, group: str) -> str | None:
        """The name of the process that holds the lease of a group; None if there is none. Works without a store."""

    def limit_waits(self) -> None:
        """From here on wait for the server only briefly: the run is about to end."""

    def close(self) -> None:
        """Close the session; leases and listeners have their own. A later use connects again."""
