"""Decoding of updates, deletes, old tuples and unchanged values."""

from __future__ import annotations

from stream_encoder import UNCHANGED, decode, delete, insert, rows, table, update
from wal2lake.schema import ReplicaIdentity

KEYED = table({"id": "int", "name": "string", "body": "string"})
FULL = table({"id": "int", "name": "string", "body": "string"}, identity=ReplicaIdentity.FULL)
KEYLESS = table({"a": "int", "b": "string"}, key=(), identity=ReplicaIdentity.FULL)


def test_an_unchanged_value_is_null_and_listed() -> None:
    cut = decode(
        KEYED, insert(1000, ["1", "a", "x"]), update(1000, ["1", "b", UNCHANGED]),
        update(1000, ["1", UNCHANGED, UNCHANGED]), update(1000, ["1", None, "y"]),
    )  # fmt: skip
    assert rows(cut.tables, "name", "body", "_unchanged") == [
        ("a", "x", None), ("b", None, [2]), (None, None, [1, 2]), (None, "y", None),
    ]  # fmt: skip
    assert (cut.tables[0].unchanged, cut.tables[0].updates) == (2, 3)


def test_an_unchanged_value_is_filled_from_a_full_old_row() -> None:
    cut = decode(FULL, update(1000, ["1", "b", UNCHANGED], old_row=["1", "a", "long"]))
    assert rows(cut.tables, "id", "name", "body", "_unchanged", "_key_changed", "_old_id") == [
        (1, "b", "long", None, False, None)
    ]
    assert cut.tables[0].unchanged == 0


def test_an_update_that_changes_the_key_carries_the_old_one() -> None:
    cut = decode(
        KEYED, update(1000, ["2", "a", "x"], old_key=["1", None, None]), update(1000, ["2", "b", UNCHANGED]),
        update(1000, ["3", "c", UNCHANGED], old_key=["2", None, None]),
    )  # fmt: skip
    assert rows(cut.tables, "_op", "id", "body", "_key_changed", "_old_id", "_unchanged") == [
        ("U", 2, "x", True, 1, None), ("U", 2, None, False, None, [2]), ("U", 3, None, True, 2, [2]),
    ]  # fmt: skip
    assert cut.tables[0].key_changes == 2


def test_an_old_key_that_is_the_same_is_no_key_change_and_fills_an_unchanged_key() -> None:
    wide = table({"id": "string", "n": "int"})
    cut = decode(wide, update(1000, [UNCHANGED, "2"], old_key=["k" * 5000, None]))
    assert rows(cut.tables, "id", "_key_changed", "_old_id", "_unchanged") == [("k" * 5000, False, None, None)]


def test_a_composite_key_is_compared_whole_and_found_by_name() -> None:
    pair = table({"v": "string", "b": "int", "a": "string"}, key=("a", "b"))
    cut = decode(
        pair, update(1000, ["x", "1", "p"], old_key=[None, "1", "q"]),
        update(1000, ["x", "1", "p"], old_key=[None, "1", "p"]),
    )  # fmt: skip
    assert rows(cut.tables, "_key_changed", "_old_a", "_old_b") == [(True, "q", 1), (False, None, None)]
    assert cut.tables[0].batch.schema.names[-2:] == ["_old_a", "_old_b"]


def test_a_full_row_with_a_key_shows_a_key_change_in_its_key_columns() -> None:
    cut = decode(
        FULL,
        update(1000, ["1", "b", "x"], old_row=["1", "a", "x"]),
        update(1000, ["2", "b", "x"], old_row=["1", "b", "x"]),
    )
    assert rows(cut.tables, "id", "_key_changed", "_old_id") == [(1, False, None), (2, True, 1)]


def test_without_a_key_an_update_is_a_delete_and_an_insert_of_whole_rows() -> None:
    cut = decode(
        KEYLESS, insert(1000, ["1", "x"]), update(1000, ["2", UNCHANGED], old_row=["1", "x"]),
        delete(1000, row=["2", None]),
    )  # fmt: skip
    assert rows(cut.tables, "_op", "a", "b", "_seq", "_unchanged") == [
        ("I", 1, "x", 0, None), ("D", 1, "x", 2, None), ("I", 2, "x", 3, None), ("D", 2, None, 4, None),
    ]  # fmt: skip
    decoded = cut.tables[0]
    assert (decoded.inserts, decoded.updates, decoded.deletes, decoded.split) == (2, 0, 2, 1)
    assert cut.refusals == {}


def test_a_delete_by_key_has_only_the_key_and_by_row_has_all() -> None:
    cut = decode(KEYED, delete(1000, key=["1", None, None]), insert(1000, ["3", "c", ""]))
    assert rows(cut.tables, "_op", "id", "name", "body") == [("D", 1, None, None), ("I", 3, "c", "")]
    cut = decode(FULL, delete(1000, row=["1", "a", "x"]))
    assert rows(cut.tables, "_op", "id", "name", "body") == [("D", 1, "a", "x")]


def test_mixed_changes_stay_in_order() -> None:
    cut = decode(
        KEYED, insert(1000, ["1", "a", "x"]), delete(1000, key=["1", None, None]), update(1000, ["2", "b", "y"]),
        update(1000, ["4", "b", UNCHANGED], old_key=["2", None, None]), insert(1000, ["5", None, None]),
    )  # fmt: skip
    assert rows(cut.tables, "_op", "id", "name", "_seq", "_key_changed") == [
        ("I", 1, "a", 0, False), ("D", 1, None, 2, False), ("U", 2, "b", 4, False), ("U", 4, "b", 6, True),
        ("I", 5, None, 8, False),
    ]  # fmt: skip


def test_a_table_with_columns_like_ours_gets_other_names() -> None:
    cut = decode(table({"id": "int", "_op": "string"}), insert(1000, ["1", "mine"]))
    assert rows(cut.tables, "_op", "__op", "__seq") == [("mine", "I", 0)]


def test_a_table_without_columns_has_rows() -> None:
    cut = decode(table({}, key=(), identity=ReplicaIdentity.FULL), insert(1000, []), insert(1000, []))
    assert rows(cut.tables, "_op", "_unchanged", "_seq") == [("I", None, 0), ("I", None, 2)]
