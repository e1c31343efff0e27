import re

import pytest

from wal2lake.source.publishing.slot import slot_name


def test_a_plain_name_contains_group_and_database() -> None:
    assert slot_name("default", "shop") == "wal2lake_default_shop"


@pytest.mark.parametrize("database", ["Shop", "my-shop", "größe", "x" * 63, "a.b"])
def test_any_database_gives_a_name_that_a_slot_may_have(database: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]{1,63}", slot_name("a" * 40, database))


def test_databases_that_look_alike_have_slots_of_their_own() -> None:
    names = {slot_name("default", database) for database in ("a_b", "a-b", "a.b", "A_B")}
    assert len(names) == 4


def test_no_two_groups_and_databases_have_one_slot() -> None:
    pairs = [("a", "b_c"), ("a_b", "c"), ("a", "b-c"), ("a", "b_C"), ("a_b_c", "d"), ("a_b", "c_d"), ("a", "b_c_d")]
    names = [slot_name(*pair) for pair in pairs]
    assert len(set(names)) == len(pairs)
    hashed = slot_name("a_b", "c")
    assert hashed.startswith("wal2lake__")
    # No group's name begins with an underscore, so no plain name looks like it.
    assert slot_name("a", hashed.removeprefix("wal2lake_a_")) != hashed
