import pytest

from wal2lake.types import LakeType, PgType, lake_type, override_allowed

TYPES = {
    type.oid: type
    for type in [
        PgType(16, "boolean"), PgType(20, "bigint"), PgType(21, "smallint"), PgType(23, "integer"),
        PgType(1700, "numeric"), PgType(25, "text"), PgType(2950, "uuid"), PgType(1082, "date"),
        PgType(1114, "timestamp without time zone"), PgType(1184, "timestamp with time zone"),
        PgType(1007, "integer[]", element=23), PgType(1231, "numeric[]", element=1700),
        PgType(20001, "positive", kind="d", base=23),
        PgType(20002, "money_amount", kind="d", base=1700, base_typmod=655366),
        PgType(20003, "positive_twice", kind="d", base=20001),
        PgType(20004, "ints", kind="d", base=1007, base_dims=1),
        PgType(20005, "ints[]", element=20004),
        PgType(20006, "matrix", kind="d", base=1007, base_dims=2),
    ]
}  # fmt: skip


def numeric(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


@pytest.mark.parametrize(
    ("oid", "typmod", "dims", "expected"),
    [
        (16, -1, 0, "boolean"), (21, -1, 0, "int"), (23, -1, 0, "int"), (20, -1, 0, "long"), (25, -1, 0, "string"),
        (2950, -1, 0, "string"), (1082, -1, 0, "date"), (1114, -1, 0, "timestamp"), (1184, -1, 0, "timestamptz"),
        (1700, -1, 0, "string"), (1700, numeric(10, 2), 0, "decimal(10,2)"),
        (1700, numeric(38, 38), 0, "decimal(38,38)"),
        (1700, numeric(39, 2), 0, "string"), (1700, numeric(3, -2), 0, "decimal(5,0)"),
        (1700, numeric(2, 5), 0, "decimal(5,5)"), (1700, numeric(30, -20), 0, "string"),
        (1007, -1, 1, "list<int>"), (1007, -1, 0, "list<int>"), (1007, -1, 2, "string"),
        (1231, numeric(10, 2), 1, "list<decimal(10,2)>"), (1231, -1, 1, "list<string>"),
        (20001, -1, 0, "int"), (20002, -1, 0, "decimal(10,2)"), (20003, -1, 0, "int"), (20004, -1, 0, "list<int>"),
        (20005, -1, 1, "string"), (20006, -1, 0, "string"), (99999, -1, 0, "string"),
    ],
)  # fmt: skip
def test_each_type_has_its_lake_type(oid: int, typmod: int, dims: int, expected: str) -> None:
    assert str(lake_type(oid, typmod, dims, TYPES)) == expected


@pytest.mark.parametrize("text", ["long", "decimal(38,10)", "list<string>", "list<decimal(5,2)>", "timestamptz"])
def test_a_lake_type_reads_what_it_writes(text: str) -> None:
    assert str(LakeType.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "varchar", "decimal", "decimal(39,2)", "decimal(5,6)", "list<int", "int>", "long(2,1)"]
)
def test_what_is_not_a_lake_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a lake type"):
        LakeType.parse(text)


@pytest.mark.parametrize(
    ("declared", "wanted", "allowed"),
    [
        ("timestamptz", "string", True), ("decimal(10,2)", "string", True), ("string", "decimal(38,10)", True),
        ("list<string>", "list<decimal(10,2)>", True), ("list<int>", "string", True), ("int", "long", False),
        ("string", "long", False), ("list<string>", "decimal(10,2)", False), ("date", "timestamp", False),
    ],
)  # fmt: skip
def test_an_override_is_allowed_only_where_no_value_can_bend(declared: str, wanted: str, allowed: bool) -> None:
    assert override_allowed(LakeType.parse(declared), LakeType.parse(wanted)) is allowed
