import json
from dataclasses import replace

import pytest

from wal2lake.schema import Column, MetaNames, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", "public", "orders"),
        ("shop.orders", "shop", "orders"),
        ('"My Shop"."Order.Items"', "My Shop", "Order.Items"),
        ('shop."quo""ted"', "shop", 'quo"ted'),
    ],
)
def test_a_table_name_is_taken_apart(text: str, schema: str, name: str) -> None:
    assert TableId.parse(text) == TableId(schema, name)


@pytest.mark.parametrize("id", [TableId("public", "a"), TableId("A b", 'x"y.z'), TableId("ünder", "straße")])
def test_a_table_name_reads_what_it_writes(id: TableId) -> None:
    assert TableId.parse(str(id)) == id


@pytest.mark.parametrize("text", ["", "a.b.c", 'a"b"', "a.", '"a"b'])
def test_what_is_not_a_table_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a table name"):
        TableId.parse(text)


def test_a_column_named_like_one_of_ours_gives_way_to_the_user() -> None:
    assert MetaNames.beside(["id", "name"]).op == "_op"
    assert MetaNames.beside(["id", "_op"]).op == "__op"
    assert MetaNames.beside(["_OP", "__seq"]).op == "___op"
    assert MetaNames.beside(["_old_id"]).old("id") == "__old_id"


def table(key: tuple[str, ...] = ("id",), identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> TableSchema:
    columns = (
        Column("id", 23, -1, "integer", LakeType.parse("int"), nullable=False),
        Column("tags", 1009, -1, "text[]", LakeType.parse("list<string>")),
        Column("price", 1700, 655366, "numeric(10,2)", LakeType.parse("decimal(10,2)")),
    )
    return TableSchema(42, TableId("public", "t"), columns, key, identity)


def test_a_schema_survives_its_json() -> None:
    leaf = replace(table(), settings_from=(TableId("public", "near"), TableId("My Schema", "root")))
    for schema in (table(), leaf):
        assert TableSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@pytest.mark.parametrize(
    ("key", "identity", "insert_only"),
    [
        (("id",), ReplicaIdentity.DEFAULT, False),
        (("id",), ReplicaIdentity.INDEX, False),
        ((), ReplicaIdentity.DEFAULT, True),
        ((), ReplicaIdentity.FULL, False),
        (("id",), ReplicaIdentity.NOTHING, True),
    ],
)
def test_a_table_without_key_and_identity_takes_inserts_only(
    key: tuple[str, ...], identity: ReplicaIdentity, insert_only: bool
) -> None:
    assert table(key, identity).insert_only is insert_only
