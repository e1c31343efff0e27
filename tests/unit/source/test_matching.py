"""Names and patterns of a group matched with a catalog."""

from __future__ import annotations

import pytest

from wal2lake.errors import ConfigError, SourceRefused, TableMissing
from wal2lake.schema import TableId
from wal2lake.source.tables.matching import CatalogRelation, FoundTable, Pattern, Tree, named, select


def relation(
    schema: str, name: str, kind: str = "r", persistence: str = "p", root: int | None = None
) -> CatalogRelation:
    oid = abs(hash((schema, name))) % 1_000_000 if name != "parted" else 500
    return CatalogRelation(oid, TableId(schema, name), kind, persistence, root)


CATALOG = [
    relation("public", "orders"),
    relation("public", "order_items"),
    relation("public", "Orders"),
    relation("public", "a.b"),
    relation("public", "star*"),
    relation("public", "parted", "p"),
    relation("public", "parted_1", root=500),
    relation("public", "view", "v"),
    relation("public", "matview", "m"),
    relation("public", "foreign", "f"),
    relation("public", "unlogged", persistence="u"),
    relation("pg_temp_3", "scratch", persistence="t"),
    relation("My Schema", "täble"),
]


def names(*wanted: str, exclude: tuple[str, ...] = ()) -> set[str]:
    return {str(table.id) for table in select(Tree(CATALOG), "g", wanted, exclude).tables}


def test_a_name_is_taken_as_it_is_written() -> None:
    assert names("public.orders") == {"public.orders"}
    assert names("orders") == {"public.orders"}
    assert names("public.Orders") == {'public."Orders"'}
    assert names('public."a.b"') == {'public."a.b"'}
    assert names('"My Schema"."täble"') == {'"My Schema".täble'}


def test_wildcards_stand_outside_quotes_only() -> None:
    assert names("public.order*") == {"public.orders", "public.order_items"}
    assert names("public.order?") == {"public.orders"}
    assert names('public."star*"') == {'public."star*"'}
    assert names('"My Schema".*') == {'"My Schema".täble'}


def test_what_can_t_be_mirrored_is_skipped_with_a_reason_under_a_pattern() -> None:
    matched = select(Tree(CATALOG), "g", ["*.*"], [])
    reasons = {skipped.id.name: skipped.reason for skipped in matched.skipped}
    assert set(reasons) == {"parted_1", "view", "matview", "foreign", "unlogged", "scratch"}
    assert reasons["view"] == "it is a view" and "partition of public.parted" in reasons["parted_1"]
    assert "temporary" in reasons["scratch"] and "unlogged" in reasons["unlogged"]


@pytest.mark.parametrize("name", ["view", "matview", "foreign", "unlogged", "parted_1", "pg_temp_3.scratch"])
def test_what_can_t_be_mirrored_is_an_error_by_name(name: str) -> None:
    with pytest.raises(SourceRefused) as raised:
        names(name)
    assert "it is a" in str(raised.value)


def test_a_missing_name_is_an_error_and_an_idle_pattern_a_warning() -> None:
    with pytest.raises(TableMissing, match=r"public\.nothing"):
        names("public.nothing")
    assert select(Tree(CATALOG), "g", ["nothing.*"], []).warnings == ("pattern nothing.* of group g matches no table",)


def test_exclude_takes_out_names_and_patterns() -> None:
    assert names("public.o*", exclude=("public.order_items",)) == {"public.orders"}
    assert names("public.*", exclude=("public.*",)) == set()


@pytest.mark.parametrize("text", ["", "a.b.c", 'a."b', "a.", ".a", 'a."b"c'])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Pattern.parse(text)


def _part(oid: int, name: str, kind: str = "r", parent: int | None = 1, persistence: str = "p") -> CatalogRelation:
    return CatalogRelation(oid, TableId("public", name), kind, persistence, None if parent is None else 1, parent)


PARTITIONS = [
    _part(1, "sales", "p", None),
    _part(2, "sales_old", "p"),
    _part(3, "sales_2023", parent=2),
    _part(4, "sales_2024", parent=2),
    _part(5, "sales_2025"),
    _part(6, "sales_tmp", persistence="u"),
    _part(7, "empty", "p", None),
    _part(8, "plain", parent=None),
]
LEAVES = {"public.sales_2023", "public.sales_2024", "public.sales_2025"}


def leaf_names(*wanted: str, exclude: tuple[str, ...] = ()) -> set[str]:
    return {str(table.id) for table in select(Tree(PARTITIONS, leafwise=True), "g", wanted, exclude).tables}


@pytest.mark.parametrize(
    ("wanted", "exclude", "leaves"),
    [
        (("sales",), (), LEAVES),
        (("public.sale?",), (), LEAVES),
        (("public.*",), (), LEAVES | {"public.plain"}),
        (("sales_old",), (), {"public.sales_2023", "public.sales_2024"}),
        (("sales_2023",), (), {"public.sales_2023"}),
        (("public.sales_202?",), ("public.*4",), {"public.sales_2023", "public.sales_2025"}),
        (("sales",), ("sales_2025", "nothing"), {"public.sales_2023", "public.sales_2024"}),
        (("sales",), ("nothing", "sales_old"), {"public.sales_2025"}),
        (("public.*", "sales_2023"), ("sales",), {"public.plain"}),
        (("empty",), (), set()),
    ],
)
def test_where_leaves_are_tables_a_name_means_the_leaves_below_it(
    wanted: tuple[str, ...], exclude: tuple[str, ...], leaves: set[str]
) -> None:
    assert leaf_names(*wanted, exclude=exclude) == leaves


def test_a_leaf_that_can_t_be_mirrored_is_skipped_with_its_root_and_an_error_by_its_own_name() -> None:
    matched = select(Tree(PARTITIONS, leafwise=True), "g", ["sales"], [])
    assert [(str(one.id), "unlogged" in one.reason) for one in matched.skipped] == [("public.sales_tmp", True)]
    with pytest.raises(SourceRefused, match="unlogged"):
        leaf_names("sales_tmp")


def test_relations_that_are_no_tables_of_their_own_are_known_with_their_leaves() -> None:
    assert Tree(PARTITIONS, leafwise=True).units() == {1: (3, 4, 5), 2: (3, 4), 7: ()}
    assert Tree(PARTITIONS).units() == dict.fromkeys((2, 3, 4, 5, 6), ())


def test_a_name_by_command_is_a_table_or_what_leaves_are_below() -> None:
    tree = Tree(PARTITIONS, leafwise=True)
    assert named(tree, "g", TableId("public", "sales")) == FoundTable(1, TableId("public", "sales"), True)
    assert not named(tree, "g", TableId("public", "sales_2023")).partitioned
    with pytest.raises(TableMissing):
        named(tree, "g", TableId("public", "nothing"))
    with pytest.raises(SourceRefused, match=r"partition of public\.sales") as raised:
        named(Tree(PARTITIONS), "g", TableId("public", "sales_2023"))
    assert "public.sales" in str(raised.value.remedy)
