"""The configuration: `wal2lake.toml`, every key also as an environment variable (`WAL2LAKE_SOURCE__DSN`).

Models are frozen; secrets are a type that does not print itself. An unknown key or a bad value is a `ConfigError`
that names the field, what it holds and what is allowed.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from .errors import ConfigError
from .pgtypes import LakeType

DEFAULT_FILE = "wal2lake.toml"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceConfig(_Section):
    """The PostgreSQL database to mirror."""

    dsn: SecretStr = Field(description="Connection string, a URL or libpq's key=value form. TCP, not a Unix socket.")
    connect_timeout: float = Field(10, gt=0, description="Seconds to wait for a connection.")
    heartbeat_interval: float = Field(
        30, gt=0, description="Seconds between heartbeats, which let a quiet database release WAL on a busy cluster."
    )


class LakeConfig(_Section):
    """Where the lake tables go."""

    path: str = Field("./lake", description="A directory; relative to the configuration file.")
    format: Literal["iceberg", "delta"] = Field("iceberg", description="Table format.")
    properties: dict[str, str] = Field(default_factory=dict, description="Table properties of new tables.")
    catalog: dict[str, str] = Field(
        default_factory=dict, description="Properties of an Iceberg catalog; none: SQLite at <path>/catalog.db."
    )


class SparkConfig(_Section):
    """The Spark driver that `run` starts."""

    master: str = Field("local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark configuration, passed on as it is.")


class StateConfig(_Section):
    """Where wanted tables and their states are kept."""

    dsn: SecretStr | None = Field(None, description="Another PostgreSQL for the state store; none: the source.")


class GroupConfig(_Section):
    """Tables that share one slot, one publication and one capture process."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$", description="Lower-case letters, digits, underscores.")
    tables: tuple[str, ...] = Field(("public.*",), description="Names or patterns (* and ?), schema.table.")
    exclude: tuple[str, ...] = Field((), description="Names or patterns left out.")
    capture: Literal["auto", "wal", "poll", "trigger"] = Field("auto", description="How changes are read.")
    flush_interval: float = Field(1.0, ge=0.05, description="Seconds between manifests of the change log.")
    flush_bytes: int = Field(64 * 1024 * 1024, ge=1024 * 1024, description="Bytes that cut a manifest sooner.")


def _lake_types(value: Any) -> Any:
    return {name: LakeType.parse(text) if isinstance(text, str) else text for name, text in dict(value).items()}


class TableConfig(_Section):
    """Settings of one table, under its name: `[tables."public.orders"]`."""

    types: Annotated[dict[str, LakeType], BeforeValidator(_lake_types)] = Field(
        default_factory=dict, description='Lake types of single columns: `{ amount = "decimal(20,4)" }`.'
    )


class Config(BaseSettings):
    """All settings of one mirror."""

    model_config = SettingsConfigDict(
        env_prefix="WAL2LAKE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    source: SourceConfig
    lake: LakeConfig = Field(default_factory=LakeConfig)
    spark: SparkConfig = Field(default_factory=SparkConfig)
    state: StateConfig = Field(default_factory=StateConfig)
    groups: tuple[GroupConfig, ...] = Field(default_factory=lambda: (GroupConfig(name="default"),), min_length=1)
    tables: dict[str, TableConfig] = Field(default_factory=dict)

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

    @property
    def lake_path(self) -> Path:
        return Path(self.lake.path)

    @property
    def changelog_path(self) -> Path:
        return self.lake_path / "_wal2lake"


def load_config(file: str | Path | None = None) -> Config:
    """Read a configuration file (`wal2lake.toml` if there is one) and the environment."""
    path = Path(file) if file is not None else Path(DEFAULT_FILE)
    data: dict[str, Any] = {}
    if file is not None or path.exists():
        data = _read(path)
    try:
        config = Config(**data)
    except ValidationError as error:
        raise _explain(error) from None
    base = path.parent if data else Path()
    resolved = str((base / config.lake.path).resolve()) if "://" not in config.lake.path else config.lake.path
    return config.model_copy(update={"lake": config.lake.model_copy(update={"path": resolved})})


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            field=str(path), cause=f"cannot read the configuration file: {error.strerror}",
            allowed="write one with: wal2lake init, or name another with: wal2lake -c FILE",
        ) from None  # fmt: skip
    except ValueError as error:
        raise ConfigError(
            field=str(path), cause=f"not valid TOML: {error}", allowed="correct that line; see: wal2lake init"
        ) from None


def _explain(error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    given = first.get("input")
    shown = "" if isinstance(given, dict | list | None) or "dsn" in field else f" {given!r}"
    match first["type"]:
        case "extra_forbidden":
            known = ", ".join(_known_keys(first["loc"][:-1]))
            return ConfigError(field=field, cause="unknown key", allowed=f"the keys here are: {known}")
        case "missing":
            variable = "WAL2LAKE_" + "__".join(str(part).upper() for part in first["loc"])
            return ConfigError(
                field=field, cause="is missing", allowed=f"set it in the configuration file or as {variable}"
            )
        case _:
            return ConfigError(field=field, cause=f"bad value{shown}", allowed=f"{first['msg']}")


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Config
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation if part in getattr(model, "model_fields", {}) else None
        model = {"groups": GroupConfig, "tables": TableConfig}.get(str(part), annotation or model)
    return sorted(model.model_fields)
