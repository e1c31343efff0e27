"""The table format of a lake, from the configuration."""

from __future__ import annotations

from ..config import Config
from .format import TableFormat
from .iceberg.tables import IcebergTables


def table_format(config: Config) -> TableFormat:
    return IcebergTables(config)
