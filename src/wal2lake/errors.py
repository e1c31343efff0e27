"""Everything that can go wrong, each with what to do about it.

    Wal2LakeError
    ├── ConfigError              the configuration file, an environment variable, an argument
    ├── SourceError              PostgreSQL
    │   ├── ConnectionFailed     ├── SlotInUse     ├── SlotLost      ├── SourceReplaced
    │   ├── SourceRestored       ├── TableMissing  ├── SourceRefused ├── SourceBusy
    │   └── SourceAltered
    ├── CaptureError             the capture process
    │   └── ChangeLogDamaged
    ├── TableError               one table; the others go on
    │   ├── ValueRefused         ├── SchemaChanged  ├── SchemaUnclear  ├── KeyMisleading
    │   ├── CopyFailed           ├── CopyNeeded     ├── ForeignTable   ├── LakeNameTaken
    │   ├── TableRecreated       ├── UpdatesRefused ├── UpdatesSeen    ├── PartitionUnlogged
    │   ├── PartitionForeign     ├── RowsNotKept    ├── LakeTableGone  ├── LakePositionLost
    │   └── LakeRolledBack
    ├── LakeError                Spark, the catalog, the storage
    │   ├── SparkUnavailable     ├── SparkLost      ├── LakeUnwritable
    │   ├── CommitFailed         ├── CommitUnknown  └── LakeInconsistent
    ├── GroupHeld                another process runs this group
    ├── OtherInstallation        the state store or a publication is that of another lake
    └── CommandRefused           what a command asks for can't be had

The docstring of an error is its message, the `remedy` says what to do, both with the fields that it was raised with.
Row values never appear in either; keys may.
"""

from __future__ import annotations

import errno
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from . import quoting


class Kind(StrEnum):
    TRANSIENT = "transient"
    """goes away by itself: retried with backoff"""
    CONFIGURATION = "configuration"
    """stays until somebody changes something"""
    RESOURCE = "resource"
    """stays until there is room, memory or a free slot again"""


class Wal2LakeError(Exception):
    """{operation} failed: {cause}"""

    remedy_text: ClassVar[str] = "run the same command with --debug to see where it failed"
    kind: ClassVar[Kind] = Kind.CONFIGURATION

    def __init__(self, /, **fields: Any) -> None:
        self.fields: Mapping[str, Any] = fields
        super().__init__(self._fill(type(self).__doc__ or ""))

    def _fill(self, template: str) -> str:
        # The template's own line ends go; what fields hold is kept, but for what would end the line.
        return _one_line(_Filling().vformat(" ".join(template.split()), (), self.fields))

    @property
    def remedy(self) -> str:
        given = self.fields.get("remedy")
        return self._fill(self.remedy_text) if given is None else _one_line(str(given))

    def about(self, table: str) -> Wal2LakeError:
        """The same of a source table: the lake knows its tables by their own names, commands mean the source's."""
        return type(self)(**{**self.fields, "table": table}) if "table" in self.fields else self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(self.fields))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _rebuild(cls: type[Wal2LakeError], fields: dict[str, Any]) -> Wal2LakeError:
    return cls(**fields)


class _Filling(string.Formatter):
    """Fills fields into a template. `{table:shell}`, `{table:toml}` and `{column:toml_key}` are quoted for a paste."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002 - the base's
        return kwargs.get(str(key), "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        return str(getattr(quoting, format_spec)(str(value)) if format_spec else value)


class ConfigError(Wal2LakeError):
    """{field}: {cause}"""

    remedy_text = "{allowed}"


class SourceError(Wal2LakeError):
    """PostgreSQL: {operation} failed: {cause}"""


class ConnectionFailed(SourceError):
    """cannot connect to PostgreSQL at {server}: {cause}"""

    remedy_text = "check [source] dsn (host, port, database, user, password) and that the server is running"
    kind = Kind.TRANSIENT


class SlotInUse(SourceError):
    """replication slot {slot} is in use by {holder}"""

    remedy_text = "stop the other reader, or end it with: SELECT pg_terminate_backend({pid})"
    kind = Kind.TRANSIENT


class SlotLost(SourceError):
    """replication slot {slot} {cause}: changes committed after {lsn} were not captured and may be missing"""

    remedy_text = "re-copy the tables with: wal2lake tables resync --all"


class SourceReplaced(SourceError):
    """the change log of group {group} was written from another database cluster ({cause})"""

    remedy_text = "check [source] dsn; if this server is meant, use a new [lake] path, or teardown and start over"


class SourceRestored(SourceError):
    """the database of group {group} was restored to an earlier point ({cause}): the lake may have what it has not"""

    remedy_text = "re-copy the tables with: wal2lake tables resync --all"


class TableMissing(SourceError):
    """table {table} does not exist in the source database"""

    remedy_text = "correct or remove it in [[groups]] tables of group {group}"


class SourceRefused(SourceError):
    """PostgreSQL refused {operation} on {object}: {cause}"""

    remedy_text = "run: wal2lake check"


class SourceBusy(SourceError):
    """PostgreSQL: {operation} {object} has to wait: {cause}"""

    remedy_text = "No action needed: it is tried again until the other sessions are done"
    kind = Kind.TRANSIENT


class SourceAltered(SourceError):
    """PostgreSQL: {operation} {object} has to look again: a table was dropped or renamed meanwhile"""

    remedy_text = "No action needed: the tables are looked at again"
    kind = Kind.TRANSIENT


class CaptureError(Wal2LakeError):
    """the capture process of group {group} stopped: {cause}"""

    kind = Kind.TRANSIENT
    remedy_text = "it is started again; if this repeats, run with --debug"


class ChangeLogDamaged(CaptureError):
    """the change log at {path} is damaged: {cause}"""

    kind = Kind.CONFIGURATION
    remedy_text = "restore the file, or re-copy the tables with: wal2lake tables resync --all"


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
    """{table}: its columns changed at the source, and it can't be told how: {question}"""

    remedy_text = "whatever the answer, a re-copy has it: wal2lake tables resync {table:shell}"


class UpdatesRefused(TableError):
    """{table}: it is not published, because PostgreSQL would refuse UPDATE and DELETE on it: {cause}"""

    remedy_text = "{fix} -- or, if its rows are only ever inserted: [tables.{table:toml}] append_only = true"


class UpdatesSeen(TableError):
    """{table}: it is append_only, but PostgreSQL has counted {count} updated or deleted rows since its copy"""

    remedy_text = (
        "copy it as it is now: wal2lake tables resync {table:shell}; if that will happen again, remove append_only and "
        "give it a replica identity: {fix}"
    )


class KeyMisleading(TableError):
    """{table}: partitions {partitions} identify rows by a key that the whole table has not, so one row could be taken
    for another"""

    remedy_text = "{fix}"


class CopyFailed(TableError):
    """{table}: the initial copy failed: {cause}"""

    kind = Kind.TRANSIENT
    remedy_text = "it is tried again; to see Spark's own error, run with --debug"


class PartitionUnlogged(TableError):
    """{table}: its partition {partition} is unlogged, so that changes of its rows are not in the WAL"""

    remedy_text = "ALTER TABLE {sql_name} SET LOGGED; then: wal2lake tables resume {table:shell}"


class RowsNotKept(TableError):
    """{table}: rows of partitions that went can't be told from others, so that on_partition_drop can't keep them"""

    remedy_text = (
        'set [tables.{table:toml}] on_partition_drop = "delete" in the configuration, which deletes them, '
        "then: wal2lake tables resync {table:shell}"
    )


class PartitionForeign(TableError):
    """{table}: its partition {partition} is a foreign table, so that changes of its rows are not in the WAL"""

    remedy_text = "ALTER TABLE {sql_parent} DETACH PARTITION {sql_name}; then: wal2lake tables resume {table:shell}"


class CopyNeeded(TableError):
    """{table}: {cause}; it is re-copied"""

    kind = Kind.TRANSIENT
    remedy_text = "No action needed: the lake keeps the table as it was until the re-copy replaces it"


class ForeignTable(TableError):
    """{table}: the lake already has a table {lake_table} that wal2lake did not make from this source table"""

    remedy_text = "rename or drop that lake table, then: wal2lake tables resume {table:shell}"


class LakeNameTaken(TableError):
    """{table}: lake table {lake_table}, which is to be its own, is that of source table {holder}"""

    kind = Kind.TRANSIENT
    remedy_text = (
        "name its lake table otherwise with [tables.{table:toml}] target = 'schema.name', and start the run again"
    )


class TableRecreated(TableError):
    """{table}: it was dropped and created again at the source; lake table {lake_table} has the rows of the old one"""

    remedy_text = "replace them by the new table's rows with: wal2lake tables resync {table:shell}"


class LakeTableGone(TableError):
    """{table}: its lake table is gone"""

    remedy_text = "re-copy it with: wal2lake tables resync {table:shell}"


class LakePositionLost(TableError):
    """{table}: its lake table has lost its position"""

    remedy_text = "re-copy it with: wal2lake tables resync {table:shell}"


class LakeRolledBack(TableError):
    """{table}: its lake table went back from {known} to {lsn}: it was rolled back, or an older version was restored"""

    remedy_text = "re-copy it with: wal2lake tables resync {table:shell}"


class LakeError(Wal2LakeError):
    """the lake: {operation} failed: {cause}"""

    kind = Kind.TRANSIENT


class SparkUnavailable(LakeError):
    """Spark could not start: {cause}"""

    kind = Kind.CONFIGURATION
    remedy_text = "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless) and see [spark] conf"


class SparkLost(LakeError):
    """Spark's JVM is gone: {cause}"""

    remedy_text = "No action needed: it is started again; if this repeats, give it more memory in [spark] conf"


class LakeUnwritable(LakeError):
    """cannot write to the lake at {path}: {cause}"""

    kind = Kind.RESOURCE
    remedy_text = "make it writable for this user and see that the disk has room, or choose another [lake] path"


class CommitFailed(LakeError):
    """{table}: the lake refused the commit: {cause}"""


class CommitUnknown(LakeError):
    """{table}: it is unknown whether the lake took the commit: {cause}"""


class LakeInconsistent(LakeError):
    """the lake: {operation} failed: the lake table of {table} lacks rows that the changes refer to"""

    remedy_text = "something else has written to it; re-copy it with: wal2lake tables resync {table:shell}"


class GroupHeld(Wal2LakeError):
    """group {group} is already mirrored by {holder}"""

    remedy_text = "stop that process first; one process at a time runs a group"
    kind = Kind.TRANSIENT


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
    """What an error means for the work: its class, and the two lines for people."""

    kind: Kind
    message: str
    remedy: str
    interrupted: bool = False
    """the work was cut off by something that is repaired for all work at once"""


def advise(error: BaseException) -> Advice:
    """One place that turns any error into what happens next."""
    if isinstance(error, Wal2LakeError):
        return Advice(error.kind, str(error), error.remedy, isinstance(error, SparkLost))
    if isinstance(error, OSError) and error.errno in _STORAGE:
        reason = LakeUnwritable(path=error.filename or "?", cause=error.strerror)
        return Advice(reason.kind, str(reason), reason.remedy)
    if isinstance(error, MemoryError):
        return Advice(Kind.RESOURCE, "out of memory", "give the machine more memory, or lower flush_bytes")
    # The text of a foreign error may hold row values, so only its name is shown.
    name = type(error).__name__
    return Advice(Kind.TRANSIENT, f"unexpected {name}", "run with --debug to see where it comes from")
