"""Names and patterns of a group against what a catalog holds."""

from __future__ import annotations

import pytest

from wal2lake.errors import ConfigError, SourceRefused, TableMissing
from wal2lake.schema import TableId
from wal2lake.source.matching import Pattern, Relation, select


def relation(schema: str, name: str, kind: str = "r", persistence: str = "p", root: int | None = None) -> Relation:
    oid = abs(hash((schema, name))) % 1_000_000 if name != "parted" else 500
    return Relation(oid, TableId(schema, name), kind, persistence, root)


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
    return {str(table.id) for table in select(CATALOG, "g", wanted, exclude).tables}


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
    matched = select(CATALOG, "g", ["*.*"], [])
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
    assert select(CATALOG, "g", ["nothing.*"], []).warnings == ("pattern nothing.* of group g matches no table",)


def test_exclude_takes_out_names_and_patterns() -> None:
    assert names("public.o*", exclude=("public.order_items",)) == {"public.orders"}
    assert names("public.*", exclude=("public.*",)) == set()


@pytest.mark.parametrize("text", ["", "a.b.c", 'a."b', "a.", ".a", 'a."b"c'])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Pattern.parse(text)
