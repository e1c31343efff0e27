"""Columns that the lake can't have are refused with statements that rename them."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from wal2lake.config import Config, SourceConfig
from wal2lake.errors import TableError
from wal2lake.lake.applying import carriable
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType

ICEBERG = IcebergTables(Config(source=SourceConfig(dsn=SecretStr("postgresql://nobody@nowhere/none"))))


def table(*names: str) -> TableSchema:
    columns = tuple(Column(name, 23, -1, "int4", LakeType.parse("int"), attnum=i) for i, name in enumerate(names, 1))
    return TableSchema(1, TableId("public", "it's"), columns, (), ReplicaIdentity.FULL)


def require_carriable(schema: TableSchema) -> None:
    carriable.require_carriable(schema, ICEBERG)


def refusal(*names: str) -> TableError:
    with pytest.raises(TableError) as refused:
        require_carriable(table(*names))
    return refused.value


def test_common_columns_are_carried() -> None:
    require_carriable(table("id", "_op", "file"))


def test_reserved_names_are_renamed_to_names_that_are_free() -> None:
    error = refusal("id", "_file", "file_", "_pos")
    assert "_file" in str(error) and "_pos" in str(error)
    assert error.remedy.startswith(
        'ALTER TABLE "public"."it\'s" RENAME COLUMN "_file" TO "file__"; '
        'ALTER TABLE "public"."it\'s" RENAME COLUMN "_pos" TO "pos_"; then: wal2lake tables resync '
    )


def test_a_name_with_a_variable_is_renamed() -> None:
    assert 'RENAME COLUMN "a${b}" TO "a_{b}_";' in refusal("id", "a${b}").remedy


def test_a_table_without_columns_can_only_be_left_out() -> None:
    assert refusal().remedy == """leave the table out: exclude = ["public.\\"it's\\""] in [[groups]]"""
