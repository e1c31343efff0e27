"""Masked columns leave the decoder masked: values, old keys, and texts of refusals."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from stream_encoder import UNCHANGED, decode, delete, insert, rows, table, update
from wal2lake import errors
from wal2lake.capture.relations import withheld
from wal2lake.schema import ReplicaIdentity, TableSchema
from wal2lake.types import STRING, Masking, masked


def _masks(schema: TableSchema, **masks: Masking) -> TableSchema:
    columns = (
        replace(column, mask=masks[column.name], lake=STRING if masks[column.name] is Masking.SHA256 else column.lake)
        if column.name in masks
        else column
        for column in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


MASKED = _masks(
    table({"id": "int", "email": "string", "phone": "string", "at": "date", "n": "list<int>"}),
    id=Masking.SHA256, email=Masking.SHA256, phone=Masking.NULL, at=Masking.NULL, n=Masking.SHA256,
)  # fmt: skip


def test_values_are_hashed_as_text_or_left_out() -> None:
    cut = decode(
        MASKED, insert(1000, ["1", "ä@b", "0170", "2024-01-01", "{1,2}"]), insert(1000, ["2", None, None, None, None]),
        insert(1000, ["3", "", "", "infinity", "{{1}}"]),
    )  # fmt: skip
    assert rows(cut.tables, "id", "email", "phone", "at", "n") == [
        (sha("1"), sha("ä@b"), None, None, sha("{1,2}")),
        (sha("2"), None, None, None, None),
        (sha("3"), sha(""), None, None, sha("{{1}}")),
    ]
    assert not cut.refusals


def test_a_long_value_is_hashed_whole() -> None:
    long = "x" * 1_000_000
    assert rows(decode(MASKED, insert(1000, ["1", long, "", None, None])).tables, "email") == [(sha(long),)]


def test_an_unchanged_value_stays_listed_unless_it_is_null_anyway() -> None:
    cut = decode(MASKED, update(1000, ["1", UNCHANGED, UNCHANGED, None, "{}"]))
    assert rows(cut.tables, "email", "phone", "_unchanged") == [(None, None, [1])]


def test_a_masked_key_that_changes_carries_the_hash_of_the_old_one() -> None:
    cut = decode(
        MASKED, update(1000, ["2", "a", "", None, None], old_key=["1", None, None, None, None]),
        delete(1000, key=["2", None, None, None, None]),
    )  # fmt: skip
    assert rows(cut.tables, "_op", "id", "_key_changed", "_old_id") == [
        ("U", sha("2"), True, sha("1")), ("D", sha("2"), False, None),
    ]  # fmt: skip


def test_a_masked_value_is_filled_from_a_full_old_row() -> None:
    full = replace(MASKED, identity=ReplicaIdentity.FULL)
    cut = decode(full, update(1000, ["1", UNCHANGED, "", None, None], old_row=["1", "long", "", None, None]))
    assert rows(cut.tables, "email", "_unchanged") == [(sha("long"), None)]


def test_a_refused_row_is_named_by_the_hash_of_its_key() -> None:
    schema = _masks(table({"id": "string", "d": "date"}), id=Masking.SHA256)
    cut = decode(schema, insert(1000, ["clear", "infinity"]))
    (refusal,) = cut.refusals[1000]
    assert refusal.fields["key"] == f"id={sha('clear')}"
    assert "clear" not in str(refusal)


def test_an_insert_that_lacks_values_needs_a_copy() -> None:
    cut = decode(table({"id": "int", "body": "string"}), insert(1000, ["1", UNCHANGED]))
    (refusal,) = cut.refusals[1000]
    assert refusal.error == errors.CopyNeeded.__name__
    assert not decode(_masks(table({"id": "int", "body": "string"}), body=Masking.NULL),
                      insert(1000, ["1", UNCHANGED])).refusals  # fmt: skip


@pytest.mark.parametrize(("mask", "expected"), [(Masking.SHA256, sha("v")), (Masking.NULL, None)])
def test_a_mask_makes_of_a_text_what_it_makes_of_a_column(mask: Masking, expected: str | None) -> None:
    assert masked("v", mask) == expected


def test_a_table_is_withheld_whole() -> None:
    schema = withheld(table({"id": "int", "email": "string", "n": "int"}))
    cut = decode(schema, insert(1000, ["1", "clear", "5"]))
    assert rows(cut.tables, "id", "email", "n") == [(sha("1"), None, None)]
    assert withheld(schema) == schema
