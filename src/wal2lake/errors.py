"""Every error of wal2lake, each with its remedy.

    Wal2LakeError
    ├── ConfigError              the configuration file, an environment variable, an argument
    ├── SourceError              PostgreSQL
    │   ├── ConnectionFailed     ├── SlotInUse     ├── SlotLost      ├── SourceReplaced
    │   ├── SourceRestored       ├── TableMissing  ├── SourceRefused ├── SourceBusy
    │   └── SourceAltered
    ├── CaptureError             the capture process
    │   ├── ChangeLogDamaged     ├── EventsGone     └── PositionUnknown
    ├── TableError               one table; the others continue
    │   ├── ValueRefused         ├── SchemaChanged  ├── SchemaUnclear  ├── KeyMisleading
    │   ├── CopyFailed           ├── CopyNeeded     ├── ForeignTable   ├── LakeNameTaken
    │   ├── TableRecreated       ├── UpdatesRefused ├── UpdatesSeen    ├── PartitionUnlogged
    │   ├── PartitionForeign     ├── RowsNotKept    ├── LakeTableGone  ├── LakePositionLost
    │   ├── LakeRolledBack       └── PluginUnfit
    ├── LakeError                Spark, the catalog, the storage
    │   ├── SparkUnavailable     ├── SparkLost      ├── LakeUnwritable
    │   ├── CommitFailed         ├── CommitUnknown  └── LakeInconsistent
    ├── GroupHeld                another process runs this group
    ├── OtherInstallation        the state store or a publication is that of another lake
    └── CommandRefused           a command that can't be executed

The docstring of an error is its message and `remedy` says what to do; both are templates filled with the error's
fields. Row values never appear in either; keys may.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from .filling import filled, one_line


class ErrorKind(StrEnum):
    TRANSIENT = "transient"
    """goes away without help: retried with backoff"""
    CONFIGURATION = "configuration"
    """stays until the configuration or the source is changed"""
    RESOURCE = "resource"
    """stays until there is room, memory or a free slot again"""


class Wal2LakeError(Exception):
    """{operation} failed: {cause}"""

    remedy_text: ClassVar[str] = "run the same command with --debug to see where it failed"
    kind: ClassVar[ErrorKind] = ErrorKind.CONFIGURATION

    def __init__(self, /, **fields: Any) -> None:
        self.fields: Mapping[str, Any] = fields
        super().__init__(self._fill(type(self).__doc__ or ""))

    def _fill(self, template: str) -> str:
        return filled(template, self.fields)

    @property
    def remedy(self) -> str:
        given = self.fields.get("remedy")
        return self._fill(self.remedy_text) if given is None else one_line(str(given))

    def about(self, table: str) -> Wal2LakeError:
        """The same error under the source table's name: the lake uses lake table names, commands use source names."""
        return type(self)(**{**self.fields, "table": table}) if "table" in self.fields else self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.fields))


def _rebuild(cls: type[Wal2LakeError], fields: dict[str, Any]) -> Wal2LakeError:
    return cls(**fields)


class ConfigError(Wal2LakeError):
    """{field}: {cause}"""

    remedy_text = "{allowed}"


class SourceError(Wal2LakeError):
    """PostgreSQL: {operation} failed: {cause}"""


class ConnectionFailed(SourceError):
    """cannot connect to PostgreSQL at {server}: {cause}"""

    remedy_text = "check [source] dsn (host, port, database, user, password) and that the server is running"
    kind = ErrorKind.TRANSIENT


class SlotInUse(SourceError):
    """replication slot {slot} is in use by {holder}"""

    remedy_text = "stop the other reader, or end it with: SELECT pg_terminate_backend({pid})"
    kind = ErrorKind.TRANSIENT


class SlotLost(SourceError):
    """replication slot {slot} {cause}: changes committed after {lsn} were not captured and may be missing"""

    remedy_text = "re-copy the tables with: wal2lake tables resync --all"


class SourceReplaced(SourceError):
    """the change log of group {group} was written from another database cluster ({cause})"""

    remedy_text = "check [source] dsn; if the server is right, use a new [lake] path, or teardown and start over"


class SourceRestored(SourceError):
    """the database of group {group} was restored to an earlier point ({cause}): the lake may have rows that it lacks"""

    remedy_text = "re-copy the tables with: wal2lake tables resync --all"


class TableMissing(SourceError):
    """table {table} does not exist in the source database"""

    remedy_text = "correct or remove it in [[groups]] tables of group {group}"


class SourceRefused(SourceError):
    """PostgreSQL refused {operation} on {object}: {cause}"""

    remedy_text = "run: wal2lake check"


class SourceBusy(SourceError):
    """PostgreSQL: {operation} {object} is waiting: {cause}"""

    remedy_text = "No action needed: it is retried until the other sessions are done"
    kind = ErrorKind.TRANSIENT


class SourceAltered(SourceError):
    """PostgreSQL: {operation} {object} is repeated: a table was dropped or renamed meanwhile"""

    remedy_text = "No action needed: the catalog is read again"
    kind = ErrorKind.TRANSIENT


class CaptureError(Wal2LakeError):
    """the capture process of group {group} stopped: {cause}"""

    kind = ErrorKind.TRANSIENT
    remedy_text = "No action needed: it is restarted; if this repeats, run with --debug"


class ChangeLogDamaged(CaptureError):
    """the change log at {path} is damaged: {cause}"""

    kind = ErrorKind.CONFIGURATION
    remedy_text = "restore the file, or re-copy the tables with: wal2lake tables resync --all"


class EventsGone(CaptureError):
    """changes of group {group} from {since} to {to} are not in the change log any more"""

    kind = ErrorKind.CONFIGURATION
    remedy_text = (
        "read the tables as they are now, then go on with: "
        "wal2lake tail --format flat --group {group:shell} --from {position}"
    )


class PositionUnknown(CaptureError):
    """position {position} is not one of the change log of group {group}"""

    kind = ErrorKind.CONFIGURATION
    remedy_text = (
        "begin with what the change log holds: wal2lake tail --format flat --group {group:shell} --from beginning"
    )


class TableError(Wal2LakeError):
    """{table}: {cause}"""


class ValueRefused(TableError):
    """{table}: column {column} of the row with {key} holds {what}, which {lake_type} can't hold"""

    remedy_text = (
        "set [tables.{table:toml}] types = {{ {column:toml_key} = {carrier:toml} }} in the configuration, "
        "then: wal2lake tables resync {table:shell}"
    )


class SchemaChanged(TableError):
    """{table}: its columns or key changed at the source ({cause})"""

    remedy_text = "re-copy it with: wal2lake tables resync {table:shell}"


class SchemaUnclear(TableError):
    """{table}: its columns changed at the source, and the catalog does not show how: {question}"""

    remedy_text = "re-copy it, which is right in both cases: wal2lake tables resync {table:shell}"


class UpdatesRefused(TableError):
    """{table}: it is not published, because PostgreSQL would refuse UPDATE and DELETE on it: {cause}"""

    remedy_text = "{fix} -- or, if its rows are only ever inserted: [tables.{table:toml}] append_only = true"


class UpdatesSeen(TableError):
    """{table}: it is append_only, but PostgreSQL has counted {count} updated or deleted rows since its copy"""

    remedy_text = (
        "re-copy it with: wal2lake tables resync {table:shell}; if it will be updated again, remove append_only and "
        "give it a replica identity: {fix}"
    )


class KeyMisleading(TableError):
    """{table}: partitions {partitions} identify rows by a key that is not a key of the whole table, so one row could be
    taken for another"""

    remedy_text = "{fix}"


class CopyFailed(TableError):
    """{table}: copying its rows failed: {cause}"""

    kind = ErrorKind.TRANSIENT
    remedy_text = "No action needed: it is retried; to see Spark's own error, run with --debug"


class PartitionUnlogged(TableError):
    """{table}: its partition {partition} is unlogged, so changes of its rows are not in the WAL"""

    remedy_text = "ALTER TABLE {sql_name} SET LOGGED; then: wal2lake tables resume {table:shell}"


class RowsNotKept(TableError):
    """{table}: rows of dropped partitions can't be distinguished from others, so on_partition_drop can't keep them"""

    remedy_text = (
        'set [tables.{table:toml}] on_partition_drop = "delete" in the configuration, which deletes them, '
        "then: wal2lake tables resync {table:shell}"
    )


class PartitionForeign(TableError):
    """{table}: its partition {partition} is a foreign table, so changes of its rows are not in the WAL"""

    remedy_text = "ALTER TABLE {sql_parent} DETACH PARTITION {sql_name}; then: wal2lake tables resume {table:shell}"


class CopyNeeded(TableError):
    """{table}: {cause}; it is re-copied"""

    kind = ErrorKind.TRANSIENT
    remedy_text = "No action needed: readers see the table as it was until the re-copy replaces it"


class PluginUnfit(TableError):
    """{table}: a value of column {column} is ambiguous in the form of the output plugin: {cause}"""

    remedy_text = "[source] plugin = 'pgoutput', or wal2json 2.6 or newer; then: wal2lake tables resync --all"


class ForeignTable(TableError):
    """{table}: the lake already has a table {lake_table} that wal2lake did not make from this source table"""

    remedy_text = "rename or drop that lake table, then: wal2lake tables resume {table:shell}"


class LakeNameTaken(TableError):
    """{table}: its lake table would be {lake_table}, which belongs to source table {holder}"""

    kind = ErrorKind.TRANSIENT
    remedy_text = (
        "give it another lake table with [tables.{table:toml}] target = 'schema.name', and start the run again"
    )


class TableRecreated(TableError):
    """{table}: it was dropped and created again at the source; lake table {lake_table} has the rows of the old one"""

    remedy_text = "replace them with the new table's rows: wal2lake tables resync {table:shell}"


class LakeTableGone(TableError):
    """{table}: its lake table does not exist"""

    remedy_text = "re-copy it with: wal2lake tables resync {table:shell}"


class LakePositionLost(TableError):
    """{table}: its lake table has no position recorded"""

    remedy_text = "re-copy it with: wal2lake tables resync {table:shell}"


class LakeRolledBack(TableError):
    """{table}: its lake table went back from {known} to {lsn}: it was rolled back, or an older version was restored"""

    remedy_text = "re-copy it with: wal2lake tables resync {table:shell}"


class LakeError(Wal2LakeError):
    """the lake: {operation} failed: {cause}"""

    kind = ErrorKind.TRANSIENT


class SparkUnavailable(LakeError):
    """Spark could not start: {cause}"""

    kind = ErrorKind.CONFIGURATION
    remedy_text = "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless) and see [spark] conf"


class SparkLost(LakeError):
    """Spark's JVM is gone: {cause}"""

    remedy_text = "No action needed: it is restarted; if this repeats, give it more memory in [spark] conf"


class LakeUnwritable(LakeError):
    """cannot write to the lake at {path}: {cause}"""

    kind = ErrorKind.RESOURCE
    remedy_text = "make it writable for this user and check that the disk has room, or choose another [lake] path"


class CommitFailed(LakeError):
    """{table}: the lake refused the commit: {cause}"""


class CommitUnknown(LakeError):
    """{table}: it is unknown whether the lake took the commit: {cause}"""


class LakeInconsistent(LakeError):
    """the lake: {operation} failed: the lake table of {table} lacks rows that the changes refer to"""

    remedy_text = "another program has written to it; re-copy it with: wal2lake tables resync {table:shell}"


class GroupHeld(Wal2LakeError):
    """group {group} is already run by {holder}"""

    remedy_text = "stop that process first; only one process at a time runs a group"
    kind = ErrorKind.TRANSIENT


class OtherInstallation(Wal2LakeError):
    """{object} belongs to another installation of wal2lake, whose lake is {place}"""

    remedy_text = (
        "use the configuration of that lake; to mirror the database a second time, set [state] dsn to another database "
        "and give the groups other names; if that lake is gone for good, drop what was made for it with: "
        "wal2lake teardown --other"
    )


class CommandRefused(Wal2LakeError):
    """{object}: {cause}"""

    remedy_text = "see: wal2lake --help"


_STORAGE = frozenset({
    errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOTDIR, errno.ENAMETOOLONG,
})  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """What an error means for the work: its kind, its message and its remedy."""

    kind: ErrorKind
    message: str
    remedy: str
    interrupted: bool = False
    """the work was cancelled because something that all work shares, such as the JVM, failed"""


def advise(error: BaseException) -> Advice:
    """Turn any error into its kind, message and remedy."""
    if isinstance(error, Wal2LakeError):
        return Advice(error.kind, str(error), error.remedy, isinstance(error, SparkLost))
    if isinstance(error, OSError) and error.errno in _STORAGE:
        reason = LakeUnwritable(path=error.filename or "?", cause=error.strerror)
        return Advice(reason.kind, str(reason), reason.remedy)
    if isinstance(error, MemoryError):
        return Advice(ErrorKind.RESOURCE, "out of memory", "give the machine more memory, or lower flush_bytes")
    # The text of an error of another library may hold row values, so only its class is shown.
    name = type(error).__name__
    return Advice(ErrorKind.TRANSIENT, f"unexpected {name}", "run with --debug to see where it comes from")
