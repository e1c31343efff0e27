"""The configuration: `wal2lake.toml`, every key also as an environment variable (`WAL2LAKE_SOURCE__DSN`).

Other packages use the names that are listed here, never the modules behind them.
"""

from .dsn import role_and_database
from .effective import Setting, settings
from .explaining import ENV_DELIMITER, ENV_PREFIX, variables
from .loading import DEFAULT_FILE, Config, load_config, read_file
from .sections import (
    NOT_YET,
    PGOUTPUT,
    SECTIONS,
    ChangelogConfig,
    GroupConfig,
    GroupTables,
    LakeConfig,
    MaintenanceConfig,
    SourceConfig,
    SparkConfig,
    StateConfig,
    TableConfig,
    settings_of,
)

__all__ = [
    "DEFAULT_FILE",
    "ENV_DELIMITER",
    "ENV_PREFIX",
    "NOT_YET",
    "PGOUTPUT",
    "SECTIONS",
    "ChangelogConfig",
    "Config",
    "GroupConfig",
    "GroupTables",
    "LakeConfig",
    "MaintenanceConfig",
    "Setting",
    "SourceConfig",
    "SparkConfig",
    "StateConfig",
    "TableConfig",
    "load_config",
    "read_file",
    "role_and_database",
    "settings",
    "settings_of",
    "variables",
]
