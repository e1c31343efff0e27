"""The configuration: `wal2lake.toml`, every key also as an environment variable (`WAL2LAKE_SOURCE__DSN`).

Models are frozen; secrets are a type that does not print itself. An unknown key or a bad value is a `ConfigError`
that names the field, what it holds and what is allowed.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from ..errors import ConfigError
from ..schema import TableId
from .explaining import (
    ENV_DELIMITER,
    ENV_PREFIX,
    explain,
    explain_variable,
    refuse_unknown_variables,
    variables,
)
from .sections import (
    NOT_YET,
    SECTIONS,
    TABLE_NAMES,
    ChangelogConfig,
    GroupConfig,
    GroupTables,
    LakeConfig,
    MaintenanceConfig,
    SourceConfig,
    SparkConfig,
    StateConfig,
    TableConfig,
    TableName,
    refuse,
    settings_of,
)

__all__ = [
    "DEFAULT_FILE",
    "ENV_DELIMITER",
    "ENV_PREFIX",
    "NOT_YET",
    "SECTIONS",
    "ChangelogConfig",
    "Config",
    "GroupConfig",
    "GroupTables",
    "LakeConfig",
    "MaintenanceConfig",
    "SourceConfig",
    "SparkConfig",
    "StateConfig",
    "TableConfig",
    "load_config",
    "read_file",
    "settings_of",
    "variables",
]

DEFAULT_FILE = "wal2lake.toml"


def _unique_groups(groups: tuple[GroupConfig, ...]) -> tuple[GroupConfig, ...]:
    if not groups:
        raise refuse("is empty", "at least one group, or leave it out")
    name, times = Counter(group.name for group in groups).most_common(1)[0]
    if times > 1:
        raise refuse(f"{times} groups are named {name!r}", "a name of its own for each group")
    return groups


def _normal_names(tables: dict[str, TableConfig]) -> dict[str, TableConfig]:
    """Keys the way `str(TableId)` writes them, so that `orders` and `public.orders` mean one table."""
    normal = {str(TableId.parse(name)): settings for name, settings in tables.items()}
    if len(normal) < len(tables):
        raise refuse("a table is named twice", f"each table once, as {TABLE_NAMES}")
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


def load_config(file: str | Path | None = None) -> Config:
    """Read a configuration file (`wal2lake.toml` if there is one) and the environment."""
    path = Path(file) if file is not None else Path(DEFAULT_FILE)
    data = read_file(file)
    refuse_unknown_variables(os.environ)
    try:
        config = Config(**data)
    except ValidationError as error:
        # A misspelt key is told before the key that is missing because of it.
        found = sorted(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden")
        raise explain(found[0]) from None
    except SettingsError as error:
        raise explain_variable(str(error)) from None
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
