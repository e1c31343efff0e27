"""The sections of the configuration file, each a model, and what a single value may be.

The descriptions here are the only ones: the file that `wal2lake init` writes and the reference in the documents are
made from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from ..pgtypes import Kind, LakeType, Masking
from ..schema import TableId
from .dsn import dsn_is_valid

TABLE_NAMES = 'schema.table, each part in double quotes where it holds a dot, a space or a quote: "My Schema"."a.b"'
_LAKE_TYPES = ", ".join(k if k is not Kind.DECIMAL else "decimal(p,s)" for k in Kind) + ", or list<...> of one"


def refuse(cause: str, allowed: str) -> PydanticCustomError:
    """An error that already says what is wrong and what to do. Neither may hold a secret."""
    return PydanticCustomError("refused", "{cause}", {"cause": cause, "allowed": allowed})


def _dsn(value: SecretStr) -> SecretStr:
    if not dsn_is_valid(value.get_secret_value()):
        raise refuse(
            "not a PostgreSQL connection string",
            "postgresql://user:password@host:5432/database (other than plain characters percent-encoded), "
            "or: host=... port=... dbname=... user=... password=...",
        )
    return value


Dsn = Annotated[SecretStr, AfterValidator(_dsn)]


def _directory(value: str) -> str:
    scheme, separator, _ = value.partition("://")
    if not separator:
        if not value.strip():
            raise refuse("is empty", "a directory, as in: path = './lake'")
        return value
    url = urlsplit(value)
    if scheme.lower() != "file" or url.netloc not in ("", "localhost"):
        raise refuse(
            f"{scheme}:// is not supported, this version writes to directories only",
            "a directory, as in: path = './lake' (on a network file system only with a [lake.catalog])",
        )
    return unquote(url.path)


NOT_YET = ("delta", "poll", "trigger")


def _available(value: str) -> str:
    if value in NOT_YET:
        raise refuse(f"{value!r} is not in this version yet", "leave it out")
    return value


def _table_name(value: str) -> str:
    try:
        if all(vars(TableId.parse(value)).values()):
            return value
    except ValueError:
        pass
    raise refuse(f"{value!r} is not a table name", TABLE_NAMES)


TableName = Annotated[str, AfterValidator(_table_name)]


def _lake_type(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return LakeType.parse(value)
    except ValueError:
        raise refuse(f"{value!r} is not a lake type", f"one of: {_LAKE_TYPES}") from None


def _mask(value: Any) -> Any:
    if isinstance(value, str) and value in list(Masking):
        return Masking(value)
    raise refuse(f"{value!r} is not a mask" if isinstance(value, str) else "is not a mask", "one of: 'sha256', 'null'")


def _not_blank(value: str) -> str:
    if not value.strip():
        raise refuse("is empty", "a condition in PostgreSQL's SQL, as in: where = \"status <> 'draft'\"")
    return value


def _some_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or len(set(value)) < len(value):
        cause = "names a column twice" if value else "is empty"
        raise refuse(cause, "the columns to mirror, those of the key included; or leave it out")
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
    streaming: bool = Field(True, description="Take large transactions in while they run, before they commit.")
    binary: bool = Field(
        True,
        description="Take changes in PostgreSQL's binary form, which costs less, "
        "where the types of all columns allow it.",
    )
    failover: bool = Field(
        False, description="Make slots that standbys keep too, so that a failover loses none (PostgreSQL 17 and newer)."
    )


class LakeConfig(_Section):
    """Where the lake tables go."""

    path: Annotated[str, AfterValidator(_directory)] = Field(
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
        default_factory=dict, description="Properties of an Iceberg catalog; none: SQLite at <path>/catalog.db."
    )


class SparkConfig(_Section):
    """The Spark driver that `run` starts."""

    master: str = Field("local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(
        default_factory=dict,
        description="Spark configuration, passed on as it is.",
        examples=[{"spark.driver.memory": "2g"}],
    )

    apply_workers: int | None = Field(
        None,
        ge=1,
        description="Tables that are written at the same time, of all groups; none: one for each core.",
        examples=[4],
    )
    copy_workers: int = Field(2, ge=1, description="Tables that are copied at the same time, of all groups.")


class StateConfig(_Section):
    """Where wanted tables and their states are kept."""

    dsn: Dsn | None = Field(
        None,
        description="Another PostgreSQL for the state store; none: a schema `wal2lake` in the source.",
        examples=["postgresql://user:secret@localhost:5432/state"],
    )


class ChangelogConfig(_Section):
    """The change log, between capture and lake."""

    max_bytes: int = Field(
        50_000_000_000,
        ge=1024 * 1024,
        description="Disk that each group's log may take; when it is full, capture waits and the slot holds the WAL.",
    )


class MaintenanceConfig(_Section):
    """Keeping lake tables quick to read: small files are compacted, old snapshots expire."""

    enabled: bool = Field(True, description="Whether wal2lake does it; false: you do, by means of your own.")
    small_files: int = Field(20, ge=2, description="Files written by small commits that start a compaction.")
    snapshot_retention: float = Field(
        1800,
        ge=0,
        description="Seconds for which old versions of a table stay readable; every commit writes the list of them.",
    )
    snapshots_kept: int = Field(100, ge=1, description="Newest versions that stay readable whatever their age.")


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
    exclude: tuple[TableName, ...] = Field((), description="Names or patterns left out.")
    publication: str | None = Field(
        None,
        min_length=1,
        description="A publication that exists, to be used as it is; tables then chooses among its tables. "
        "None: one is made.",
        examples=["for_the_lake"],
    )
    partitions: Partitions = Field(
        "root",
        description="What a partitioned table is in the lake: root makes one table of it, leaf one of each partition.",
    )
    capture: Annotated[Literal["auto", "wal", "poll", "trigger"], AfterValidator(_available)] = Field(
        "auto", description="How changes are read. This version reads the WAL: auto and wal."
    )
    flush_interval: float = Field(1.0, ge=0.05, description="Seconds between manifests of the change log, at most.")
    flush_bytes: int = Field(
        64 * 1024 * 1024, ge=1024 * 1024, description="Bytes after which a manifest is written sooner."
    )
    on_drop: OnDrop = Field(
        "drop", description="What becomes of a column that the source drops: drop it, or keep it and write NULL."
    )
    on_partition_drop: OnPartitionDrop = Field(
        "delete",
        description="What becomes of the rows of a partition that is detached or dropped: delete them, or keep them.",
    )
    on_incompatible: OnIncompatible = Field(
        "resync",
        description="A change of columns that a lake table can't follow: resync re-copies it, stop waits.",
    )
    on_rename: OnRename = Field(
        "rename", description="What a rename of a source table does to its lake table: rename it too, or keep its name."
    )
    on_recreate: OnRecreate = Field(
        "resync",
        description="A table that was dropped and created again under its name: resync copies the new one into the "
        "place of the old one, stop waits.",
    )

    @property
    def leafwise(self) -> bool:
        """Whether each partition is a table of its own."""
        return self.partitions == "leaf"

    @model_validator(mode="after")
    def _own_publication(self) -> GroupConfig:
        if self.leafwise and self.publication is not None:
            # Filters and lists of a root are not those of its partitions, and nobody but its owner can add these.
            raise refuse(
                "partitions = 'leaf' needs a publication of the group's own, and publication names another one",
                "leave out publication, so that one is made; or partitions = 'root'",
            )
        return self


class TableConfig(_Section):
    """Settings of one table, under its name."""

    target: TableName | None = Field(
        None,
        description="Name of the lake table; none: the table's own. With on_rename = 'keep' it counts when the lake "
        "table is first made.",
        examples=["sales.orders"],
    )
    flush_interval: float | None = Field(
        None,
        ge=0.05,
        description="Seconds between lake commits, where the table needs them less often than its group.",
        examples=[60.0],
    )
    flush_bytes: int | None = Field(
        None,
        ge=1024,
        description="Bytes in the change log that are committed before that time is over; none: as the group says.",
        examples=[16 * 1024 * 1024],
    )
    on_rename: OnRename | None = Field(
        None,
        description="What a rename of the source table does to the lake table; none: as the group says.",
        examples=["keep"],
    )
    types: dict[str, Annotated[LakeType, BeforeValidator(_lake_type)]] = Field(
        default_factory=dict,
        description="Lake types of single columns, where the type table's own is not wanted.",
        examples=[{"amount": "decimal(20,4)"}],
    )
    mask: dict[str, Annotated[Masking, BeforeValidator(_mask)]] = Field(
        default_factory=dict,
        description="Columns whose values are not written: sha256 writes their hash instead, null writes NULL.",
        examples=[{"email": "sha256", "phone": "null"}],
    )
    columns: Annotated[tuple[str, ...], AfterValidator(_some_columns)] = Field(
        (),
        description="The only columns to mirror; those of the key must be among them. PostgreSQL 15 or newer.",
        examples=[("id", "status", "email")],
    )
    where: Annotated[str, AfterValidator(_not_blank)] | None = Field(
        None,
        description="The only rows to mirror: a condition in PostgreSQL's SQL. PostgreSQL 15 or newer.",
        examples=["status <> 'draft'"],
    )
    append_only: bool = Field(
        False,
        description="Whether its rows are only ever inserted: updates and deletes are not published, so the table "
        "needs no key. It stops when PostgreSQL counts an update or delete.",
        examples=[True],
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
        """Whether it keeps something of the table out of the lake."""
        return bool(self.mask or self.columns or self.where)

    @model_validator(mode="after")
    def _one_type(self) -> TableConfig:
        both = [name for name in self.mask if name in self.types]
        if both:
            raise refuse(
                f"column {both[0]} has a mask and a type of its own",
                "one of the two: a sha256 is a string, and a null has the type that the column has",
            )
        return self


NO_SETTINGS = TableConfig()


def settings_of(tables: Mapping[str, TableConfig], id: TableId, settings_from: Iterable[TableId] = ()) -> TableConfig:
    """The settings of a table, key by key: its own, else those of the tables that it heeds, the first of them first.

    A partition that is mirrored by itself heeds the tables above it. `target` is the name of one lake table only.
    """
    own = tables.get(str(id), NO_SETTINGS)
    above = [section for name in settings_from if (section := tables.get(str(name))) is not None]
    if not above:
        # Asked for each table in each turn of a run; putting a section together takes twenty times as long.
        return own
    found = {key: getattr(own, key) for key in own.model_fields_set}
    for section in above:
        found = {key: getattr(section, key) for key in section.model_fields_set - {"target"}} | found
    return TableConfig.model_construct(**found)


class GroupTables(dict[str, TableConfig]):
    """The settings of tables as a group sees them: the publication that it names may choose rows and columns, too."""

    def __init__(self, tables: Mapping[str, TableConfig], group: GroupConfig) -> None:
        super().__init__(tables)
        self.group = group


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
