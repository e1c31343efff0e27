"""Partition constraints, as PostgreSQL 18 writes them, in Spark SQL."""

from __future__ import annotations

import pytest

from wal2lake.lake.applying.partition import Untranslatable, within
from wal2lake.schema import Bounds, Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType

COLUMNS = {
    "id": (23, "int"), "x": (20, "long"), "d": (1082, "date"), "Reg ion": (25, "string"), "v": (1043, "string"),
    "b": (16, "boolean"), "n": (1700, "decimal(10,2)"), "ts": (1114, "timestamp"), "tz": (1184, "timestamptz"),
    "c": (1042, "string"), "u": (2950, "string"), "f": (701, "double"),
}  # fmt: skip
SCHEMA = TableSchema(
    1,
    TableId("public", "p"),
    tuple(
        Column(name, oid, -1, "", LakeType.parse(lake), attnum=number)
        for number, (name, (oid, lake)) in enumerate(COLUMNS.items(), 1)
    ),
    (),
    ReplicaIdentity.DEFAULT,
    True,
)

TRANSLATED = [
    (
        "((d IS NOT NULL) AND (d >= '2024-01-01'::date) AND (d < '2025-01-01'::date))",
        "((`d` IS NOT NULL) AND (`d` >= DATE'2024-01-01') AND (`d` < DATE'2025-01-01'))",
    ),
    (
        """((d IS NOT NULL) AND (d >= '2025-01-01'::date) AND (NOT (("Reg ion" IS NULL) OR """
        """("Reg ion" = ANY (ARRAY['eu'::text, 'o''x'::text])))))""",
        "((`d` IS NOT NULL) AND (`d` >= DATE'2025-01-01') AND (NOT ((`Reg ion` IS NULL) OR "
        "(`Reg ion` IN ('eu', 'o\\'x')))))",
    ),
    ("((v IS NOT NULL) AND ((v)::text = 'a'::character varying(10)))", "((`v` IS NOT NULL) AND (`v` = 'a'))"),
    (
        "((v IS NOT NULL) AND ((v)::text = ANY (ARRAY['b'::character varying(10), 'c'::character varying(10)])))",
        "((`v` IS NOT NULL) AND (`v` IN ('b', 'c')))",
    ),
    ("((b IS NULL) OR (b = false))", "((`b` IS NULL) OR (`b` = false))"),
    (
        "((id IS NOT NULL) AND (n IS NOT NULL) AND ((id > '-5'::integer) OR ((id = '-5'::integer) AND "
        "(n >= 1.50::numeric(10,2)))) AND (id < 10))",
        "((`id` IS NOT NULL) AND (`n` IS NOT NULL) AND ((`id` > -5L) OR ((`id` = -5L) AND (`n` >= 1.50BD))) AND "
        "(`id` < 10L))",
    ),
    (
        "((tz IS NOT NULL) AND (tz < '2023-12-31 22:00:00+00'::timestamp with time zone))",
        "((`tz` IS NOT NULL) AND (`tz` < TIMESTAMP'2023-12-31 22:00:00+00:00'))",
    ),
    (
        "((ts IS NOT NULL) AND (ts < '2024-06-01 12:34:56.789'::timestamp without time zone))",
        "((`ts` IS NOT NULL) AND (`ts` < TIMESTAMP_NTZ'2024-06-01 12:34:56.789'))",
    ),
    (
        "((u IS NOT NULL) AND (u = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid))",
        "((`u` IS NOT NULL) AND (`u` = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'))",
    ),
    (
        "((n IS NOT NULL) AND (n >= '-3.50'::numeric(10,2)))",
        "((`n` IS NOT NULL) AND (`n` >= -3.50BD))",
    ),
    (
        "(NOT ((x IS NOT NULL) AND (x = ANY (ARRAY['-2'::bigint, '1'::bigint]))))",
        "(NOT ((`x` IS NOT NULL) AND (`x` IN (-2L, 1L))))",
    ),
]
REFUSED = [
    None,
    "",
    "satisfies_hash_partition('16540'::oid, 2, 0, id)",
    "((c IS NOT NULL) AND (c = 'eu '::character(3)))",
    "((v IS NOT NULL) AND ((v)::text >= 'a'::character varying(10)))",
    "(((id % 10) IS NOT NULL) AND ((id % 10) >= 0))",
    "((f IS NOT NULL) AND (f >= '1'::double precision))",
    "((d IS NOT NULL) AND (d >= 'infinity'::date))",
    "((d IS NOT NULL) AND (d >= '0044-03-15 BC'::date))",
    "((unknown IS NOT NULL) AND (unknown = 1))",
    "(id = 1) garbage",
    "((id = 1)",
]


def _bounds(constraint: str | None) -> Bounds | None:
    columns = tuple((column.name, column.attnum) for column in SCHEMA.columns)
    return None if constraint is None else Bounds(constraint, columns)


@pytest.mark.parametrize(("constraint", "condition"), TRANSLATED)
def test_constraint_means_the_same_in_spark(constraint: str, condition: str) -> None:
    assert within(_bounds(constraint), SCHEMA) == condition


@pytest.mark.parametrize("constraint", REFUSED)
def test_constraint_without_an_exact_counterpart_is_refused(constraint: str | None) -> None:
    with pytest.raises(Untranslatable):
        within(_bounds(constraint), SCHEMA)
