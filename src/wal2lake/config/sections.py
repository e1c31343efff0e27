"""The sections of the configuration file, a model each.

The descriptions here are the only ones: the file that `wal2lake init` writes and the reference page are generated from
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..schema import TableId
from ..types import LakeType, Masking
from .values import Dsn, TableName, as_directory, as_lake_type, as_mask, refuse, require_columns, require_text

PGOUTPUT: Literal["pgoutput"] = "pgoutput"
NOT_YET = ("delta",)


def _available(value: str) -> str:
    if value in NOT_YET:
        raise refuse(f"{value!r} is not in this version yet", "leave it out")
    return value


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceConfig(_Section):
    """The PostgreSQL database to mirror."""

    dsn: Dsn = Field(
        description="Connection string, a URL or libpq's key=value form. TCP, not a Unix socket. Of several hosts, the "
        "primary is used unless `target_session_attrs` says otherwise.",
        examples=["postgresql://user:secret@localhost:5432/shop"],
    )
    connect_timeout: float = Field(10, gt=0, description="Seconds to wait for a connection, for each host.")
    heartbeat_interval: float = Field(
        30, gt=0, description="Seconds between heartbeats, which let a quiet database release WAL on a busy cluster."
    )
    streaming: bool = Field(True, description="Receive large transactions before they commit.")
    binary: bool = Field(
        True,
        description="Receive changes in PostgreSQL's binary form, which costs less CPU, where all column types of a "
        "table allow it.",
    )
    plugin: Literal["pgoutput", "wal2json", "test_decoding"] = Field(
        PGOUTPUT,
        description="Output plugin of the replication slots. pgoutput is part of PostgreSQL and the most exact; the "
        "others are for servers where it can't be used. A slot keeps its plugin: changing it takes a resync.",
    )
    failover: bool = Field(False, description="Make failover slots, which standbys keep (PostgreSQL 17 or newer).")
    poll_interval: float = Field(
        0.1,
        ge=0.01,
        description='With `capture = "poll"`: seconds between two reads of the slot, at least 0.12 while it is idle.',
    )
    poll_max_changes: int = Field(
        500_000,
        ge=1,
        description='With `capture = "poll"`: changes per read, counted at the ends of transactions. '
        "The server keeps them in a temporary file.",
    )
    transition_timeout: float = Field(
        300,
        gt=0,
        description='With `capture = "auto"`: seconds after which a change from triggers to the WAL is abandoned, '
        "because transactions are open; it is tried again later.",
    )
    pooler: bool = Field(
        False,
        description='The DSN connects to a pooler in transaction mode, such as PgBouncer. Needs `capture = "poll"`.',
    )


class LakeConfig(_Section):
    """The lake tables."""

    path: Annotated[str, AfterValidator(as_directory)] = Field(
        "./lake", description="A directory; relative to the configuration file."
    )
    format: Annotated[Literal["iceberg", "delta"], AfterValidator(_available)] = Field(
        "iceberg", description="Table format. This version writes iceberg."
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Table properties of new tables.",
        examples=[{"format-version": "2"}],
    )
    catalog: dict[str, str] = Field(
        default_factory=dict, description="Properties of an Iceberg catalog. Default: SQLite at `<path>/catalog.db`."
    )


class SparkConfig(_Section):
    """The Spark driver that `run` starts."""

    master: str = Field("local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(
        default_factory=dict,
        description="Spark configuration, passed to Spark unchanged.",
        examples=[{"spark.driver.memory": "2g"}],
    )

    apply_workers: int | None = Field(
        None,
        ge=1,
        description="Tables that are written at the same time, over all groups. Default: one per core.",
        examples=[4],
    )
    copy_workers: int = Field(2, ge=1, description="Tables that are copied at the same time, over all groups.")


class StateConfig(_Section):
    """The state store, which keeps desired tables and the states of tables."""

    dsn: Dsn | None = Field(
        None,
        description="Another PostgreSQL for the state store. Default: a schema `wal2lake` in the source database.",
        examples=["postgresql://user:secret@localhost:5432/state"],
    )
    pooler: bool = Field(
        False,
        description="`dsn` connects to a pooler in transaction mode: a run holds its group by a row with an expiry, "
        "not by a lock of its session. Without `dsn`, `[source] pooler` decides.",
    )


class ChangelogConfig(_Section):
    """The change log, between capture and lake."""

    max_bytes: int = Field(
        50_000_000_000,
        ge=1024 * 1024,
        description="Disk space of each group's log. When it is full, capture waits and the slot holds the WAL.",
    )
    keep_seconds: float = Field(0, ge=0, description="Seconds that applied changes stay in it, for readers of events.")


class MaintenanceConfig(_Section):
    """Maintenance of lake tables: small files are compacted, old snapshots expire."""

    enabled: bool = Field(True, description="Whether wal2lake maintains the lake tables; if false, do it yourself.")
    small_files: int = Field(20, ge=2, description="Number of small files that triggers a compaction.")
    snapshot_retention: float = Field(
        1800,
        ge=0,
        description="Seconds for which old snapshots of a table are kept. Every commit writes the list of them.",
    )
    snapshots_kept: int = Field(100, ge=1, description="Number of newest snapshots that are kept whatever their age.")


OnDrop = Literal["drop", "keep"]
OnPartitionDrop = Literal["delete", "keep"]
OnIncompatible = Literal["resync", "stop"]
OnRename = Literal["keep", "rename"]
OnRecreate = Literal["resync", "stop"]
Partitions = Literal["root", "leaf"]


class GroupConfig(_Section):
    """Tables that share one slot, one publication and one capture process."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
        description="Lower-case letters, digits and underscores, at most 40.",
        examples=["default"],
    )
    tables: tuple[TableName, ...] = Field(("public.*",), description="Names or patterns (* and ?), schema.table.")
    exclude: tuple[TableName, ...] = Field((), description="Names or patterns to leave out.")
    publication: str | None = Field(
        None,
        min_length=1,
        description="An existing publication to use as it is; `tables` then selects among its tables. "
        "Default: wal2lake makes one.",
        examples=["for_the_lake"],
    )
    partitions: Partitions = Field(
        "root",
        description="Lake tables of a partitioned table: root makes one, leaf makes one for each partition.",
    )
    capture: Annotated[Literal["auto", "wal", "poll", "trigger"], AfterValidator(_available)] = Field(
        "auto",
        description="How changes are captured: wal streams a replication slot, poll reads one through SQL, trigger "
        "installs statement-level triggers and needs no slot; auto is wal where that is possible, else trigger.",
    )
    flush_interval: float = Field(1.0, ge=0.05, description="Seconds between manifests of the change log, at most.")
    flush_bytes: int = Field(
        64 * 1024 * 1024, ge=1024 * 1024, description="Bytes of changes that trigger an earlier manifest."
    )
    auto_replica_identity: bool = Field(
        False,
        description="Set the replica identity of tables, and of their partitions, on which PostgreSQL would refuse "
        "UPDATE and DELETE: FULL where there is no key. Otherwise such tables are not captured from the WAL. The role "
        "has to own them. What was set stays when a table is not mirrored any more.",
        examples=[True],
    )
    on_drop: OnDrop = Field(
        "drop", description="Columns that are dropped at the source: drop them too, or keep them and write NULL."
    )
    on_partition_drop: OnPartitionDrop = Field(
        "delete",
        description="Rows of partitions that are detached or dropped at the source: delete them, or keep them.",
    )
    on_incompatible: OnIncompatible = Field(
        "resync",
        description="A change of columns that a lake table can't follow: resync re-copies the table, stop stops it.",
    )
    on_rename: OnRename = Field(
        "rename", description="A renamed source table: rename its lake table too, or keep the name."
    )
    on_recreate: OnRecreate = Field(
        "resync",
        description="A table that was dropped and created again under its name: resync replaces the rows of the lake "
        "table with a copy of the new one, stop stops it.",
    )

    @property
    def polls(self) -> bool:
        """Whether its slot is read through SQL, without a replication connection."""
        return self.capture == "poll"

    @property
    def triggers(self) -> bool:
        """Whether its tables are captured by triggers."""
        return self.capture == "trigger"

    @property
    def leafwise(self) -> bool:
        """Whether each partition is mirrored as a table of its own."""
        return self.partitions == "leaf"

    @model_validator(mode="after")
    def _own_publication(self) -> GroupConfig:
        if self.leafwise and self.publication is not None:
            # Filters and column lists of a root do not apply to its partitions, and only its owner can add these.
            raise refuse(
                "partitions = 'leaf' needs a publication made by wal2lake, and publication names another one",
                "leave out publication, or set partitions = 'root'",
            )
        if self.triggers and (self.leafwise or self.publication is not None):
            # A statement on a root fires the triggers of the root alone.
            raise refuse(
                "capture = 'trigger' has no publication, and mirrors partitioned tables as one",
                "leave out publication, and set partitions = 'root'",
            )
        return self


class TableConfig(_Section):
    """Settings of one table, under its name."""

    target: TableName | None = Field(
        None,
        description="Name of the lake table. Default: the name of the table. With on_rename = 'keep' it is used only "
        "when the lake table is created.",
        examples=["sales.orders"],
    )
    flush_interval: float | None = Field(
        None,
        ge=0.05,
        description="Seconds between lake commits, for a table that needs them less often than its group.",
        examples=[60.0],
    )
    flush_bytes: int | None = Field(
        None,
        ge=1024,
        description="Bytes in the change log that trigger a commit before flush_interval. Default: as in the group.",
        examples=[16 * 1024 * 1024],
    )
    on_rename: OnRename | None = Field(
        None,
        description="A rename of the source table: see [[groups]]. Default: as in the group.",
        examples=["keep"],
    )
    types: dict[str, Annotated[LakeType, BeforeValidator(as_lake_type)]] = Field(
        default_factory=dict,
        description="Lake types of single columns, instead of those in the table of types.",
        examples=[{"amount": "decimal(20,4)"}],
    )
    mask: dict[str, Annotated[Masking, BeforeValidator(as_mask)]] = Field(
        default_factory=dict,
        description="Columns whose values are replaced: sha256 writes their hash, null writes NULL.",
        examples=[{"email": "sha256", "phone": "null"}],
    )
    columns: Annotated[tuple[str, ...], AfterValidator(require_columns)] = Field(
        (),
        description="The only columns to mirror, including those of the key. PostgreSQL 15 or newer.",
        examples=[("id", "status", "email")],
    )
    where: Annotated[str, AfterValidator(require_text)] | None = Field(
        None,
        description="The only rows to mirror, as an SQL condition. PostgreSQL 15 or newer.",
        examples=["status <> 'draft'"],
    )
    append_only: bool = Field(
        False,
        description="For a table whose rows are only ever inserted: updates and deletes are not published, so it "
        "needs no key. The table stops when PostgreSQL counts an update or delete.",
        examples=[True],
    )
    auto_replica_identity: bool | None = Field(None, description="As in [[groups]], for this table.", examples=[True])
    capture: Literal["auto", "wal", "trigger"] | None = Field(
        None,
        description="How changes of this table are captured in a group with a replication slot: trigger installs "
        "triggers; auto does so if it has no replica identity; wal never does. Default: auto if that is the group's "
        "capture, else wal.",
        examples=["trigger"],
    )
    on_drop: OnDrop | None = Field(None, description="As in [[groups]], for this table.", examples=["keep"])
    on_partition_drop: OnPartitionDrop | None = Field(
        None, description="As in [[groups]], for this table.", examples=["keep"]
    )
    on_incompatible: OnIncompatible | None = Field(
        None, description="As in [[groups]], for this table.", examples=["stop"]
    )
    on_recreate: OnRecreate | None = Field(None, description="As in [[groups]], for this table.", examples=["stop"])

    @property
    def withholds(self) -> bool:
        """Whether it keeps rows, columns or values of the table out of the lake."""
        return bool(self.mask or self.columns or self.where)

    @model_validator(mode="after")
    def _one_type(self) -> TableConfig:
        both = [name for name in self.mask if name in self.types]
        if both:
            raise refuse(
                f"column {both[0]} has both a mask and a type",
                "one of the two: sha256 writes a string, and null keeps the column's type",
            )
        return self


NO_SETTINGS = TableConfig()


def settings_of(tables: Mapping[str, TableConfig], id: TableId, settings_from: Iterable[TableId] = ()) -> TableConfig:
    """The settings of a table, key by key: its own, else those of the tables above it, nearest first.

    `settings_from` are the tables above a partition that is mirrored by itself; `target` is never inherited.
    """
    own = tables.get(str(id), NO_SETTINGS)
    above = [section for name in settings_from if (section := tables.get(str(name))) is not None]
    if not above:
        # Cached: it is called for each table in each turn of a run, and building a section takes twenty times as long.
        return own
    found = {key: getattr(own, key) for key in own.model_fields_set}
    for section in above:
        found = {key: getattr(section, key) for key in section.model_fields_set - {"target"}} | found
    return TableConfig.model_construct(**found)


@dataclass(frozen=True)
class GroupTables(Mapping[str, TableConfig]):
    """The settings of a group's tables. A named publication may select rows and columns as well."""

    tables: Mapping[str, TableConfig]
    group: GroupConfig

    def __getitem__(self, name: str) -> TableConfig:
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)


SECTIONS: Mapping[str, type[BaseModel]] = {
    "source": SourceConfig,
    "lake": LakeConfig,
    "spark": SparkConfig,
    "changelog": ChangelogConfig,
    "maintenance": MaintenanceConfig,
    "state": StateConfig,
    "groups": GroupConfig,
    "tables": TableConfig,
}
PLAIN_SECTIONS = ("source", "lake", "spark", "changelog", "maintenance", "state")
