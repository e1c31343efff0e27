"""The ports of a source: protocols that PostgreSQL and the scripted server of the simulation implement.

    ChangeSource     one open stream of raw changes, for the capture worker
    ControlSession   an ordinary session beside the stream, for the same worker
    CatalogReader    the definitions of tables, to find the targets of relations in the stream
    SourceDatabase   the database for a group's run: tables, publications, slot and snapshots

A capture mode consists of the first three, in one CaptureSource.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from ..config import GroupConfig, TableConfig
from ..errors import ConfigError, ValueRefused, Wal2LakeError
from ..position import Lsn
from ..retry import CAPTURE, Backoff
from ..schema import Bounds, Membership, TableId, TableSchema
from ..types import PgType
from .crossing import Crossing
from .model import CopySource, ExportedSnapshot, SourceIdentity, Standing
from .publishing.replica_identity import Identified
from .publishing.slot import SlotInfo
from .sessions.locking import PATIENT, Patience
from .sessions.server import ServerFacts
from .tables.catalog_table import CatalogTable
from .tables.matching import FoundTable, Matched
from .tables.selection import Named

if TYPE_CHECKING:
    from ..decode import Messages


@dataclass(frozen=True)
class Capabilities:
    """What a stream can represent. Values are PostgreSQL's text unless `binary`."""

    transactions: bool = True
    """changes come in whole transactions, in the order of their commits"""
    truncate: bool = True
    key_changes: bool = True
    """an update that changes the key has the old key"""
    streamed: bool = False
    """transactions may arrive in blocks before their commit (pgoutput protocol 2)"""
    binary: bool = False
    """values have PostgreSQL's binary form"""
    published_only: bool = True
    """changes are those that the publications had when they were made; else there may be others, too"""
    exclusive: bool = True
    """while it is open, nobody else can open one of the same slot"""


@dataclass(frozen=True)
class StreamRequest:
    """Parameters of a stream. What a source can't do is missing in its capabilities."""

    slot: str
    publications: tuple[str, ...]
    start: Lsn
    """the resume token: transactions with a commit LSN below it are not sent"""
    streamed: bool = False
    binary: bool = False


class ChangeSource(Protocol):
    """One open stream of raw changes, used by one thread.

    Messages are pgoutput in XLogData (protocol 1, or 2 if transactions are streamed): Begin, the changes in order,
    Commit; a Relation before the first change that needs it. Transactions come in the order of their commits, each one
    once, starting at the resume token. Rows have the columns that their table had when they were written.

    Any method raises ConnectionFailed if the source can't be reached, and SlotLost if changes are lost for good.
    After an error only `close` may be called; another stream may be opened at the last token.
    """

    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def received(self) -> Lsn:
        """The latest position that the source has reported. It only grows."""

    @property
    def keepalive_lsn(self) -> Lsn:
        """Every transaction with a commit LSN below it has been returned by `read`. It only grows."""

    @property
    def acknowledged(self) -> Lsn:
        """The highest acknowledged position; before the first acknowledgement, the resume token."""

    @property
    def awaits_acknowledgement(self) -> bool:
        """Whether it has more, or is asked for it, and gives none before all that it gave is acknowledged."""

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        """The messages received, in order; they may end in the middle of a transaction, which the next call continues.

        Empty if the time is up, if the source has only reported its position, or if a descriptor of `wake` is readable.
        """

    def stay(self, timeout: float, wake: Sequence[int] = ()) -> None:
        """Read nothing until the time is up or a `wake` is readable. What arrives meanwhile is left for `read`."""

    def ask(self) -> None:
        """Ask the source for its position; a later `read` moves `keepalive_lsn` there."""

    def acknowledge(self, lsn: Lsn) -> None:
        """Everything below a position is durable: it need not be sent again, and a new stream may begin there.

        Call it with commit ends and keepalive positions only. A lower position than before is ignored.
        """

    def finish(self, timeout: float = 2.0) -> None:
        """End the stream cleanly: on return the source has the last acknowledgement, if that was possible in time."""

    def close(self) -> None:
        """Release resources. May be called after any error, and more than once."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ControlSession(Protocol):
    """An ordinary session with the source, beside the stream. Any method raises ConnectionFailed if it is gone."""

    def facts(self) -> ServerFacts: ...
    def slot(self, name: str) -> SlotInfo | None: ...
    def has_publication(self, name: str) -> bool: ...
    def published_types(self, name: str) -> Sequence[tuple[int, int]]:
        """Type and typmod of every column of tables that a publication names."""

    def known_position(self, group: str) -> Lsn | None:
        """The position that was last written to a state store in the same database; None if there is none."""

    def timeline_left_at(self, current: int, earlier: int) -> Lsn | None:
        """The position at which a timeline branched off an earlier one; None if it did not."""

    def wal_end(self) -> Lsn:
        """The end of the source's flushed WAL; a stream can't be beyond it."""

    def mark(self) -> Lsn:
        """Write a message to the WAL; return a position that the stream will reach and that is after it."""

    def alive(self) -> bool:
        """Whether the session seems to be connected, without a query."""

    @property
    def closed(self) -> bool:
        """Whether it was closed, or a query has failed because of the connection."""

    def fileno(self) -> int | None:
        """A descriptor that is readable when the source ends the session; None: there is none."""

    def close(self) -> None: ...


class CatalogReader(Protocol):
    """Queries on the catalog, at the present moment. Any method raises SourceError if that fails."""

    @property
    def server_version(self) -> int: ...
    def tables(self, oids: Collection[int]) -> Mapping[int, CatalogTable]:
        """Tables by oid; those that do not exist are left out."""

    def types(self, oids: Collection[int]) -> Mapping[int, PgType]:
        """Types by oid, with the base types of domains and the elements of arrays."""

    def describe(
        self, oids: Collection[int], overrides: Mapping[str, TableConfig] | None = None
    ) -> Mapping[int, TableSchema]:
        """Schemas by oid; tables that do not exist are left out. Raises ConfigError if a setting does not fit."""

    def partition_bounds(self, leaf: int) -> tuple[Bounds | None, tuple[Membership, ...]]:
        """Which rows of its root are in a partition, None if no condition tells; and its membership at each level.

        If the membership is one that was read before, the bounds are those of it.
        """

    def published(self, publication: str) -> frozenset[int]:
        """The tables in a publication, by themselves or by what triggers have captured; empty if it does not exist."""

    def named_publication(self, group: GroupConfig) -> Named:
        """The publication that a group names. Raises ConfigError if it does not exist or omits kinds of changes."""

    def without_waiting(self) -> AbstractContextManager[None]:
        """Inside the block, a query that would wait for a lock raises SourceError."""

    def close(self) -> None: ...


def _no_token(_: Lsn) -> None: ...


@dataclass(frozen=True)
class CaptureSource:
    """A capture mode: what the capture worker opens, each as often as it needs."""

    open: Callable[[StreamRequest], ChangeSource]
    catalog: Callable[[], CatalogReader]
    control: Callable[[], ControlSession]
    retry: Backoff = CAPTURE
    """how long to wait after a failure"""
    token: Callable[[Lsn], str | None] = _no_token
    """what a stream resumes from at the end of a transaction that was read, where its position does not say that"""


class OpenSnapshot(Protocol):
    """An exported snapshot that lives until it is closed, with a temporary slot."""

    snapshot: ExportedSnapshot

    @property
    def alive(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SourceDatabase(Protocol):
    """The source for a group's run. Thread-safe.

    Any method raises ConnectionFailed if the server can't be reached, and works again when it can be.
    """

    @property
    def slot_name(self) -> str:
        """The slot of the group's change log, or the one that it will have."""

    @property
    def withholds(self) -> bool:
        """Whether a setting keeps rows, columns or values out of the lake."""

    @property
    def must_renew(self) -> bool:
        """Whether tables that are added to a publication while a slot exists must be added twice."""

    def identity(self) -> SourceIdentity: ...
    def table_id(self, oid: int) -> str:
        """The identifier of the source table that is stored in its lake table."""

    def oid_of(self, table_id: str) -> int | None:
        """The oid in an identifier that `table_id` made for a table of this database; None for other databases."""

    def names(self) -> dict[int, TableId]:
        """The name of every table of the database, by oid."""

    def discover(self) -> tuple[TableSchema, ...]:
        """The tables that match the group's names and patterns."""

    def match(self) -> Matched:
        """The matches of the group's names and patterns; a name without a match is a warning, not an error."""

    def relation(self, id: TableId) -> FoundTable:
        """The table of a name, if the group can mirror it or its leaves; otherwise raises with the reason."""

    def units(self) -> Mapping[int, tuple[int, ...]]:
        """Relations that are not tables of their own in this group, by oid: partitions, or roots with their leaves."""

    def describe(self, oids: Sequence[int]) -> tuple[TableSchema, ...]:
        """Schemas of the tables that exist."""

    def describe_each(self, oids: Sequence[int]) -> tuple[tuple[TableSchema, ...], dict[int, ConfigError]]:
        """The same, and the errors of settings that do not fit; such tables are described without settings."""

    def existing(self, oids: Collection[int]) -> frozenset[int]:
        """The tables that exist."""

    def unnamed(self) -> dict[str, ConfigError]:
        """Settings that keep something out of the lake, of tables that do not exist, by name."""

    def unmasked(self, last: TableSchema | None, schema: TableSchema) -> ConfigError | None:
        """Why a table must not be mirrored as described: it was masked or filtered under another name."""

    def append_only(self, schema: TableSchema) -> bool: ...
    def settled(self) -> str:
        """A moment of the server, for `passed`."""

    def passed(self, moment: str) -> bool:
        """Whether every transaction that was open at a moment has ended."""

    def publish(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        """Make the group's publications contain exactly these tables; returns refused ones with the reason.

        Raises SourceBusy if they are locked for long.
        """

    def renew(self, schemas: Sequence[TableSchema]) -> None:
        """Publish published tables again. Raises SourceBusy if they are locked."""

    def identify(self, oids: Collection[int]) -> Identified:
        """Set the replica identities of tables whose settings say so, and that PostgreSQL would refuse to update."""

    def updates_refused(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables whose updates and deletes PostgreSQL refuses while they are published."""

    def unpublished(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables that are missing in their publication, so that changes of them are not in the stream."""

    def by_triggers(self) -> frozenset[int]:
        """The tables that are captured by triggers although the group has a slot."""

    def stays_on_triggers(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables that triggers will capture beside a slot."""

    def misplaced(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables that `publish` would have captured in another way than they are."""

    def maintain_triggers(self) -> bool:
        """Keep what captures `by_triggers` right and small; whether there is anything.

        Raises SourceBusy if a table is locked; the rest is done.
        """

    def appends(self) -> bool:
        """Whether the group has a publication of append-only tables."""

    def changes_counted(self, oids: Sequence[int]) -> dict[int, dict[int, int]]:
        """Updates and deletes in PostgreSQL's statistics, for each table by heap."""

    def drop_publication(self) -> None:
        """Drop the group's own publications; not a named one. Raises SourceBusy if another session is altering one, or
        dropping one of its tables."""

    def drop_place(self) -> None:
        """Drop the schema of the buffers, if it is there and no group has buffers in it: a DBA may have made it."""

    def wal_obstacles(self) -> tuple[str, ...]:
        """Why no slot of the group could be made and streamed; empty: nothing is known that blocks it."""

    def may_install_triggers(self) -> bool:
        """Whether the role may install triggers on the group's tables, so that they always fire."""

    def crossing(self) -> Crossing | None:
        """The steps from triggers to the stream of a slot; None if it has none to go."""

    def clear_other_lane(self) -> None:
        """Drop what the group has of the capture mode that it does not use: triggers, or slot and publications.

        Raises SourceBusy if tables are locked for long; then it is to be called again.
        """

    def announce(self, event: str) -> None:
        """Notify those who listen to changes of the capture mode."""

    def slot(self) -> SlotInfo | None: ...
    def create_slot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        """Create the group's slot, with the snapshot at which its stream begins. Waits for open transactions."""

    def open_snapshot(self, patience: Patience = PATIENT) -> OpenSnapshot:
        """Open a consistent point for copies while the group's slot is being streamed."""

    def drop_slot(self) -> None: ...
    def copy_source(self, schema: TableSchema) -> CopySource: ...
    def held_still(self, schema: TableSchema, snapshot: str) -> AbstractContextManager[CopySource]:
        """The inputs of a copy at a snapshot; the table's columns do not change until the block ends."""

    def described_at(self, schema: TableSchema, snapshot: str) -> AbstractContextManager[TableSchema]:
        """The table as of a snapshot, unchanged until the block ends. Its `heaps` are those that a copy reads."""

    def find_unfit(self, schema: TableSchema) -> ValueRefused | None: ...
    def mark(self) -> Lsn:
        """A position after everything that is committed, which the stream is sure to reach."""

    def written(self) -> Lsn:
        """A position after everything that is committed."""

    def standing(self) -> Standing: ...
    def interrupt(self) -> None:
        """Cancel the running query and refuse further ones: the group is about to end. For any thread."""

    def close(self) -> None: ...
