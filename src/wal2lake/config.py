"""The configuration: `wal2lake.toml`, every key also as an environment variable (`WAL2LAKE_SOURCE__DSN`).

Models are frozen; secrets are a type that does not print itself. An unknown key or a bad value is a `ConfigError`
that names the field, what it holds and what is allowed. The descriptions here are the only ones: the file that
`wal2lake init` writes and the reference in the documents are made from them.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from .errors import ConfigError
from .pgtypes import Kind, LakeType, Masking
from .schema import TableId

DEFAULT_FILE = "wal2lake.toml"
ENV_PREFIX = "WAL2LAKE_"
ENV_DELIMITER = "__"
# Variables with the prefix that are not configuration: the jar cache, and what the tests use.
_OTHER_VARIABLES = ("WAL2LAKE_CACHE", "WAL2LAKE_FAULT", "WAL2LAKE_TEST_")

_TABLE_NAMES = 'schema.table, each part in double quotes where it holds a dot, a space or a quote: "My Schema"."a.b"'
_LAKE_TYPES = ", ".join(k if k is not Kind.DECIMAL else "decimal(p,s)" for k in Kind) + ", or list<...> of one"


def _refuse(cause: str, allowed: str) -> PydanticCustomError:
    """An error that already says what is wrong and what to do. Neither may hold a secret."""
    return PydanticCustomError("refused", "{cause}", {"cause": cause, "allowed": allowed})


def _dsn(value: SecretStr) -> SecretStr:
    from .source.facts import dsn_is_valid

    if not dsn_is_valid(value.get_secret_value()):
        raise _refuse(
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
            raise _refuse("is empty", "a directory, as in: path = './lake'")
        return value
    url = urlsplit(value)
    if scheme.lower() != "file" or url.netloc not in ("", "localhost"):
        raise _refuse(
            f"{scheme}:// is not supported, this version writes to directories only",
            "a directory, as in: path = './lake' (also one on a mounted network file system)",
        )
    return unquote(url.path)


_NOT_YET = ("delta", "poll", "trigger")


def _available(value: str) -> str:
    if value in _NOT_YET:
        raise _refuse(f"{value!r} is not in this version yet", "leave it out")
    return value


def _table_name(value: str) -> str:
    try:
        if all(vars(TableId.parse(value)).values()):
            return value
    except ValueError:
        pass
    raise _refuse(f"{value!r} is not a table name", _TABLE_NAMES)


TableName = Annotated[str, AfterValidator(_table_name)]


def _lake_type(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return LakeType.parse(value)
    except ValueError:
        raise _refuse(f"{value!r} is not a lake type", f"one of: {_LAKE_TYPES}") from None


def _mask(value: Any) -> Any:
    if isinstance(value, str) and value in list(Masking):
        return Masking(value)
    raise _refuse(f"{value!r} is not a mask" if isinstance(value, str) else "is not a mask", "one of: 'sha256', 'null'")


def _not_blank(value: str) -> str:
    if not value.strip():
        raise _refuse("is empty", "a condition in PostgreSQL's SQL, as in: where = \"status <> 'draft'\"")
    return value


def _some_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or len(set(value)) < len(value):
        cause = "names a column twice" if value else "is empty"
        raise _refuse(cause, "the columns to mirror, those of the key included; or leave it out")
    return value


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceConfig(_Section):
    """The PostgreSQL database to mirror."""

    dsn: Dsn = Field(
        description="Connection string, a URL or libpq's key=value form. TCP, not a Unix socket.",
        examples=["postgresql://user:secret@localhost:5432/shop"],
    )
    connect_timeout: float = Field(10, gt=0, description="Seconds to wait for a connection.")
    heartbeat_interval: float = Field(
        30, gt=0, description="Seconds between heartbeats, which let a quiet database release WAL on a busy cluster."
    )
    streaming: bool = Field(True, description="Take large transactions in while they run, before they commit.")
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
    """Keeping lake tables quick to read: small files joined, old versions let go."""

    enabled: bool = Field(True, description="Whether wal2lake does it; false: you do, by means of your own.")
    small_files: int = Field(20, ge=2, description="Files written by small commits that start a compaction.")
    snapshot_retention: float = Field(
        1800,
        ge=0,
        description="Seconds for which old versions of a table stay readable; every commit writes the list of them.",
    )
    snapshots_kept: int = Field(100, ge=1, description="Newest versions that stay readable whatever their age.")


OnDrop = Literal["drop", "keep"]
OnIncompatible = Literal["resync", "stop"]
OnRename = Literal["keep", "rename"]


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
    capture: Annotated[Literal["auto", "wal", "poll", "trigger"], AfterValidator(_available)] = Field(
        "auto", description="How changes are read. This version reads the WAL: auto and wal."
    )
    flush_interval: float = Field(1.0, ge=0.05, description="Seconds between manifests of the change log.")
    flush_bytes: int = Field(64 * 1024 * 1024, ge=1024 * 1024, description="Bytes that cut a manifest sooner.")
    on_drop: OnDrop = Field(
        "drop", description="What becomes of a column that the source drops: drop it, or keep it and write NULL."
    )
    on_incompatible: OnIncompatible = Field(
        "resync",
        description="A change of columns that a lake table can't follow: resync copies it anew, stop waits.",
    )
    on_rename: OnRename = Field(
        "keep", description="What a rename of a source table does to its lake table: keep its name, or rename it too."
    )


class TableConfig(_Section):
    """Settings of one table, under its name."""

    target: TableName | None = Field(
        None,
        description="Name of the lake table when it is first made; none: the table's own.",
        examples=["sales.orders"],
    )
    on_rename: OnRename | None = Field(
        None,
        description="What a rename of the source table does to the lake table; none: as the group says.",
        examples=["rename"],
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
    on_drop: OnDrop | None = Field(None, description="As in [[groups]], for this table.", examples=["keep"])
    on_incompatible: OnIncompatible | None = Field(
        None, description="As in [[groups]], for this table.", examples=["stop"]
    )

    @property
    def withholds(self) -> bool:
        """Whether it keeps something of the table out of the lake."""
        return bool(self.mask or self.columns or self.where)

    @model_validator(mode="after")
    def _one_type(self) -> TableConfig:
        both = [name for name in self.mask if name in self.types]
        if both:
            raise _refuse(
                f"column {both[0]} has a mask and a type of its own",
                "one of the two: a sha256 is a string, and a null has the type that the column has",
            )
        return self


class GroupTables(dict[str, TableConfig]):
    """The settings of tables as a group sees them: the publication that it names may choose rows and columns, too."""

    def __init__(self, tables: Mapping[str, TableConfig], group: GroupConfig) -> None:
        super().__init__(tables)
        self.group = group


def _unique_groups(groups: tuple[GroupConfig, ...]) -> tuple[GroupConfig, ...]:
    if not groups:
        raise _refuse("is empty", "at least one group, or leave it out")
    name, times = Counter(group.name for group in groups).most_common(1)[0]
    if times > 1:
        raise _refuse(f"{times} groups are named {name!r}", "a name of its own for each group")
    return groups


def _normal_names(tables: dict[str, TableConfig]) -> dict[str, TableConfig]:
    """Keys the way `str(TableId)` writes them, so that `orders` and `public.orders` mean one table."""
    normal = {str(TableId.parse(name)): settings for name, settings in tables.items()}
    if len(normal) < len(tables):
        raise _refuse("a table is named twice", f"each table once, as {_TABLE_NAMES}")
    return normal


class Config(BaseSettings):
    """All settings of one mirror."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    source: SourceConfig
    lake: LakeConfig = Field(default_factory=LakeConfig)
    spark: SparkConfig = Field(default_factory=SparkConfig)
    changelog: ChangelogConfig = Field(default_factory=ChangelogConfig)
    maintenance: MaintenanceConfig = Field(default_factory=MaintenanceConfig)
    state: StateConfig = Field(default_factory=StateConfig)
    groups: Annotated[tuple[GroupConfig, ...], AfterValidator(_unique_groups)] = Field(
        default_factory=lambda: (GroupConfig(name="default"),)
    )
    tables: Annotated[dict[TableName, TableConfig], AfterValidator(_normal_names)] = Field(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The file arrives as init arguments; the environment stands above it.
        return env_settings, init_settings

    def tables_of(self, group: GroupConfig) -> GroupTables:
        return GroupTables(self.tables, group)

    @property
    def lake_path(self) -> Path:
        return Path(self.lake.path)

    @property
    def changelog_path(self) -> Path:
        return self.lake_path / "_wal2lake"


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
_PLAIN_SECTIONS = ("source", "lake", "spark", "changelog", "maintenance", "state")


def variables() -> Iterator[str]:
    """The environment variables that are read. `groups` and `tables` are JSON, as a list and as an object."""
    for section in _PLAIN_SECTIONS:
        for key in SECTIONS[section].model_fields:
            yield f"{ENV_PREFIX}{section}{ENV_DELIMITER}{key}".upper()
    yield from (f"{ENV_PREFIX}{name}".upper() for name in SECTIONS if name not in _PLAIN_SECTIONS)


def load_config(file: str | Path | None = None) -> Config:
    """Read a configuration file (`wal2lake.toml` if there is one) and the environment."""
    path = Path(file) if file is not None else Path(DEFAULT_FILE)
    data = read_file(file)
    _refuse_unknown_variables(os.environ)
    try:
        config = Config(**data)
    except ValidationError as error:
        # A misspelt key is told before the key that is missing because of it.
        found = sorted(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden")
        raise _explain(found[0]) from None
    except SettingsError as error:
        raise _explain_variable(str(error)) from None
    base = path.parent if data else Path()
    lake = config.lake.model_copy(update={"path": str((base / config.lake.path).resolve())})
    return config.model_copy(update={"lake": lake})


def read_file(file: str | Path | None = None) -> dict[str, Any]:
    """What a configuration file says, unjudged; nothing if none is named and there is no `wal2lake.toml`."""
    path = Path(file) if file is not None else Path(DEFAULT_FILE)
    return _read(path) if file is not None or path.exists() else {}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            field=str(path), cause=f"cannot read the configuration file: {error.strerror}",
            allowed="write one with: wal2lake init, or name another with: wal2lake -c FILE",
        ) from None  # fmt: skip
    except ValueError as error:
        cause = "not UTF-8" if isinstance(error, UnicodeDecodeError) else f"not valid TOML: {error}"
        raise ConfigError(field=str(path), cause=cause, allowed="correct it; an example: wal2lake init") from None


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = list(variables())
    maps = tuple(
        f"{ENV_PREFIX}{section}{ENV_DELIMITER}{key}{ENV_DELIMITER}".upper()
        for section in _PLAIN_SECTIONS
        for key, field in SECTIONS[section].model_fields.items()
        if get_origin(field.annotation) is dict
    )
    for name in sorted(environment):
        upper = name.upper()
        if not upper.startswith(ENV_PREFIX) or upper.startswith(_OTHER_VARIABLES):
            continue
        if upper not in known and not upper.startswith(maps):
            nearest = difflib.get_close_matches(upper, known, n=1)
            hint = f"perhaps {nearest[0]} is meant" if nearest else f"known are: {', '.join(known)}"
            raise ConfigError(field=name, cause="unknown environment variable", allowed=f"unset it; {hint}")


def _explain_variable(text: str) -> ConfigError:
    section = next((name for name in SECTIONS if f'"{name}"' in text), "")
    return ConfigError(
        field=f"{ENV_PREFIX}{section.upper()}",
        cause="its value (or that of a variable below it) is not valid JSON",
        allowed='lists and tables are given as JSON, as in: WAL2LAKE_GROUPS=\'[{"name": "default"}]\'',
    )


def _explain(error: ErrorDetails) -> ConfigError:
    location = error["loc"]
    field, context = _dotted(location), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            known = sorted(_section_at(location[:-1]).model_fields)
            nearest = difflib.get_close_matches(str(location[-1]), known, n=1)
            hint = f"perhaps {nearest[0]} is meant; " if nearest else ""
            return ConfigError(field=field, cause="unknown key", allowed=f"{hint}the keys here are: {', '.join(known)}")
        case "missing":
            where = "set it in the configuration file (write one with: wal2lake init)"
            variable = f"{ENV_PREFIX}{ENV_DELIMITER.join(map(str, location))}".upper()
            if location == ("source",):
                field, variable = "source.dsn", f"{variable}{ENV_DELIMITER}DSN"
            also = f" or as {variable}" if variable in variables() else ""
            return ConfigError(field=field, cause="is missing", allowed=where + also)
        case "refused":
            return ConfigError(field=field, cause=context["cause"], allowed=context["allowed"])
        case _:
            given = _shown(location, error["input"])
            allowed = "[[groups]]" if location == ("groups",) else _allowed(error["type"], context)
            return ConfigError(field=field, cause=f"bad value{given}", allowed=allowed)


_KINDS_OF_VALUE = {
    "string_type": "a string, in quotes",
    "string_pattern_mismatch": "lower-case letters, digits and underscores, beginning with a letter, at most 40",
    "tuple_type": 'a list, as in: ["public.orders", "public.c*"]',
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


def _allowed(type: str, context: Mapping[str, Any]) -> str:
    match type:
        case "literal_error":
            words = str(context["expected"]).replace(" or ", ", ").split(", ")
            return f"one of: {', '.join(word for word in words if word.strip(chr(39)) not in _NOT_YET)}"
        case "greater_than":
            return f"a number above {context['gt']:g}"
        case "greater_than_equal":
            return f"a number of at least {context['ge']:g}"
        case _:
            return _KINDS_OF_VALUE.get(type, "a table of keys and values; see an example with: wal2lake init")


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]":
            name = part if part.replace("_", "a").replace("-", "a").isalnum() else f'"{part}"'
            text += f".{name}" if text else name
    return text


def _section_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    return SECTIONS.get(str(location[0]), Config) if location else Config


def _shown(location: tuple[int | str, ...], given: Any) -> str:
    """The value for people, where it is known that it is no secret: a number or a word under a key of its own."""
    field = _field_at(location)
    if field is None or SecretStr in (field.annotation, *get_args(field.annotation)):
        return ""
    return f" {given!r:.80}" if isinstance(given, str | int | float | bool) else ""


def _field_at(location: tuple[int | str, ...]) -> FieldInfo | None:
    names = [part for part in location if isinstance(part, str)]
    if len(names) != 2 or names[0] == "tables":
        return None
    return _section_at(location).model_fields.get(names[1])
