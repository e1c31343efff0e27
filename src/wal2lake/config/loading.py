"""The configuration: `wal2lake.toml`, every key also as an environment variable (`WAL2LAKE_SOURCE__DSN`).

Models are frozen; secrets have a type that does not print itself. An unknown key or a bad value is a `ConfigError` that
names the field, its value and the allowed values.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from ..errors import ConfigError
from ..schema import TableId
from .explaining import (
    ENV_DELIMITER,
    ENV_PREFIX,
    explain,
    explain_variable,
    refuse_unknown_variables,
)
from .sections import (
    PGOUTPUT,
    ChangelogConfig,
    GroupConfig,
    GroupTables,
    LakeConfig,
    MaintenanceConfig,
    SourceConfig,
    SparkConfig,
    StateConfig,
    TableConfig,
)
from .values import TABLE_NAMES, TableName, refuse

DEFAULT_FILE = "wal2lake.toml"


def _unique_groups(groups: tuple[GroupConfig, ...]) -> tuple[GroupConfig, ...]:
    if not groups:
        raise refuse("is empty", "at least one group, or leave it out")
    name, times = Counter(group.name for group in groups).most_common(1)[0]
    if times > 1:
        raise refuse(f"{times} groups are named {name!r}", "a different name for each group")
    return groups


def _normal_names(tables: dict[str, TableConfig]) -> dict[str, TableConfig]:
    """Keys in the form of `str(TableId)`, so that `orders` and `public.orders` name one table."""
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

    @model_validator(mode="after")
    def _needs_pgoutput(self) -> Config:
        if self.source.plugin == PGOUTPUT:
            return self
        named = [f"publication of group {group.name}" for group in self.groups if group.publication is not None]
        filters = [f"where of table {name}" for name, table in self.tables.items() if table.where is not None]
        lists = [f"columns of table {name}" for name, table in self.tables.items() if table.columns]
        for what in (*named, *filters, *lists):
            raise refuse(
                f"output plugin {self.source.plugin} knows no publications, so {what} would keep nothing out",
                "[source] plugin = 'pgoutput'; or leave out publication, where and columns",
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The file comes as init arguments; the environment overrides it.
        return env_settings, init_settings

    def tables_of(self, group: GroupConfig) -> GroupTables:
        return GroupTables(self.tables, group)

    def chooses(self, group: GroupConfig) -> bool:
        """Whether a group's capture mode is chosen for it, also if it has been. One made by a command chooses."""
        configured = next((one for one in self.groups if one.name == group.name), None)
        return configured is None or configured.capture == "auto"

    def capture_of(self, group: GroupConfig, table: TableConfig) -> str:
        """How a table of a group with a slot is captured: wal, trigger, or auto: wal where that is possible."""
        return table.capture or ("auto" if self.chooses(group) else "wal")

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
        # An unknown key is reported before the key that is missing because of the misspelling.
        found = sorted(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden")
        raise explain(found[0]) from None
    except SettingsError as error:
        raise explain_variable(str(error)) from None
    base = path.parent if data else Path()
    lake = config.lake.model_copy(update={"path": str((base / config.lake.path).resolve())})
    return config.model_copy(update={"lake": lake})


def read_file(file: str | Path | None = None) -> dict[str, Any]:
    """The contents of a configuration file, unvalidated; empty if no file is named and wal2lake.toml does not exist."""
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
