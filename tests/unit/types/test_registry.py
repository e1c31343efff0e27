"""Every registered type says all that has to be said, and a new one is a single entry."""

from __future__ import annotations

import importlib
import pkgutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace

import numpy as np
import pyarrow as pa
import pytest

from wal2lake import types
from wal2lake.types import STRING, TYPES, Converted, Kind, LakeType, Masking, PgType, TypeTable, masked_copy_column
from wal2lake.types.family import Carrier, Family, Scalar
from wal2lake.types.registry import FAMILIES
from wal2lake.types.slices import PADDING, Slices, array, whole_numbers

LAKES = [LakeType(kind) if kind is not Kind.DECIMAL else LakeType(kind, 10, 2) for kind in Kind]
SHOWN = [(scalar, typmod) for scalar in TYPES.scalars.values() for typmod in scalar.shown.values() or [-1]]


def column(values: Sequence[bytes | None]) -> Slices:
    """Values as they lie in a message."""
    data, start, length = bytearray(PADDING), [], []
    for value in values:
        start.append(len(data))
        length.append(len(value or b""))
        data += value or b""
    data += PADDING
    valid = np.array([value is not None for value in values])
    return Slices(np.frombuffer(bytes(data), np.uint8), np.array(start), np.array(length), valid)


def assert_null_column(found: Converted, lake: LakeType) -> None:
    assert found.unfit is None
    assert (found.array.type, found.array.to_pylist()) == (lake.arrow, [None, None])


@pytest.mark.parametrize("lake", LAKES, ids=str)
def test_every_lake_type_has_all_facets(lake: LakeType) -> None:
    carrier = TYPES.carrier(lake)
    assert carrier.kind is lake.kind
    assert_null_column(TYPES.from_text(column([None, None]), lake), lake)
    assert lake.spark and lake.arrow is not None
    several = replace(lake, is_list=True)
    assert several.spark == f"array<{lake.spark}>"
    assert_null_column(TYPES.from_text(column([None, None]), several), several)
    assert '"c"' in carrier.select('"c"', lake, True)
    assert "`c`" in carrier.arrived.format("`c`")
    assert carrier.from_text.format("e", lake.spark).count("e") > 0
    assert bool(carrier.unfit('"c"', lake)) is bool(carrier.unfit_words), "what is refused has words"
    assert carrier.listed is None or len({carrier.listed.form.format(spare) for spare in carrier.listed.spare}) == 2
    assert carrier.widens(lake, lake) is False, "the same is no widening"
    assert carrier.bound("no value of any type") is None


@pytest.mark.parametrize(("scalar", "typmod"), SHOWN, ids=lambda value: getattr(value, "name", str(value)))
def test_every_postgresql_type_has_all_facets(scalar: Scalar, typmod: int) -> None:
    lake = scalar.lake_type(typmod)
    known = {scalar.oid: PgType(scalar.oid, scalar.name), 1: PgType(1, f"_{scalar.name}", element=scalar.oid)}
    assert TYPES.lake_type(scalar.oid, typmod, 0, known) == lake
    assert TYPES.lake_type(1, typmod, 1, known) == replace(lake, is_list=True)
    reader = TYPES.binary_reader(scalar.oid, typmod, lake)
    assert (reader is not None) is (scalar.binary is not None and scalar.binary_fits(lake))
    if reader is not None:
        assert_null_column(reader(column([None, None])), lake)
    for carried in {lake, STRING}:
        wire = TYPES.copy_column('"c"', "`c`", scalar.oid, typmod, 0, known, carried)
        assert '"c"' in wire.sql and "`c`" in wire.spark
    listed = TYPES.copy_column('"c"', "`c`", 1, typmod, 1, known, replace(lake, is_list=True))
    assert ("::text[]" in listed.sql) is (scalar.json_differs or lake.kind is not Kind.STRING)
    assert TYPES.binary_reader(scalar.oid, typmod, replace(lake, is_list=True)) is None
    for mask in Masking:
        assert masked_copy_column('"c"', "`c`", mask).sql
    assert scalar.widens_to <= TYPES.scalars.keys() - {scalar.oid}
    assert not scalar.equal_by_text or lake == STRING
    assert not scalar.typmod_widens(5, 4)


def test_every_file_of_a_family_is_registered() -> None:
    files = [importlib.import_module(f"wal2lake.types.{found.name}") for found in pkgutil.iter_modules(types.__path__)]
    assert {id(file.FAMILY) for file in files if hasattr(file, "FAMILY")} == {id(family) for family in FAMILIES}


def test_what_a_carrier_can_not_do_without_has_no_default() -> None:
    required = {field.name for field in fields(Carrier) if field.default is MISSING}
    assert required == {"kind", "text", "toasted"}


def test_a_type_that_no_family_names_is_its_own_text() -> None:
    known = {
        20001: PgType(20001, "mood", kind="e"), 20002: PgType(20002, "_mood", element=20001),
        20003: PgType(20003, "pair", kind="c"), 20004: PgType(20004, "_pair", element=20003),
    }  # fmt: skip
    assert TYPES.lake_type(20001, -1, 0, known) == STRING
    assert TYPES.binary_reader(20001, -1, STRING) is None
    assert TYPES.copy_column("c", "`c`", 20001, -1, 0, known, STRING).sql == (
        "CASE WHEN c IS NOT DISTINCT FROM NULL THEN NULL ELSE concat(c) END"
    )
    strings = replace(STRING, is_list=True)
    assert "array_to_json(c)" in TYPES.copy_column("c", "`c`", 20002, -1, 1, known, strings).sql
    assert "array_to_json(c::text[])" in TYPES.copy_column("c", "`c`", 20004, -1, 1, known, strings).sql


def test_the_facts_of_types_need_neither_numpy_nor_pyarrow() -> None:
    code = (
        "import sys; from wal2lake.types import STRING, lake_type, copy_column; "
        "copy_column('c', '`c`', 1184, -1, 0, {}, lake_type(1184, -1, 0, {})); STRING.spark; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pyarrow", "psycopg", "pyspark"}.intersection(loaded)


def test_families_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="23 is registered twice"):
        TypeTable([*FAMILIES, Family("again", scalars=(Scalar(23, "int4"),))])
    with pytest.raises(ValueError, match="decimal is registered twice"):
        TypeTable([*FAMILIES, Family("again", carriers=(replace(TYPES.carriers[Kind.DECIMAL]),))])


def test_a_lake_type_that_no_family_carries_is_refused() -> None:
    without = [family for family in FAMILIES if Kind.DATE not in {carrier.kind for carrier in family.carriers}]
    with pytest.raises(ValueError, match="no family carries date, timestamp, timestamptz"):
        TypeTable(without)


def read_tally(values: Slices, lake: LakeType) -> Converted:
    return Converted(array(values, whole_numbers(values, 8), lake.arrow))


TALLY = Scalar(99001, "tally", Kind.LONG, read_tally, select="{}::int8")


def test_a_new_type_is_one_entry() -> None:
    table = TypeTable([*FAMILIES, Family("toys", scalars=(TALLY,))])
    known = {
        99001: PgType(99001, "tally"), 99002: PgType(99002, "_tally", element=99001),
        99003: PgType(99003, "score", kind="d", base=99001),
    }  # fmt: skip
    lake = table.lake_type(99001, -1, 0, known)
    assert str(lake) == "long"
    assert [str(table.lake_type(oid, -1, 0, known)) for oid in (99002, 99003)] == ["list<long>", "long"]
    assert table.from_text(column([b"-7", None, b"12"]), lake).array == pa.array([-7, None, 12])
    lists = table.from_text(column([b"{1,NULL}", b"{}"]), replace(lake, is_list=True))
    assert lists.array.to_pylist() == [[1, None], []]
    reader = table.binary_reader(99001, -1, lake)
    assert reader is not None
    assert reader(column([struct.pack(">q", -7), None, struct.pack(">q", 12)])).array == pa.array([-7, None, 12])
    assert table.copy_column('"n"', "`n`", 99001, -1, 0, known, lake).sql == '"n"::int8'
    assert table.copy_column('"n"', "`n`", 99003, -1, 0, known, lake).sql == '"n"::int8', "a domain over it"
    assert "concat" in table.copy_column('"n"', "`n`", 99001, -1, 0, known, STRING).sql, "an override to text"
    assert table.carrier(lake).toasted is False
    assert TYPES.lake_type(99001, -1, 0, known) == STRING, "without the entry it is text"
