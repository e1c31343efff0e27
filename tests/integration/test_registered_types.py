"""The registered types are those of the server, and every other built-in type is carried as PostgreSQL's own text."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import TupleRow

from decoding import KINDS
from servers import Database
from wal2lake.types import STRING, TYPES, PgType, sha256_sql

Connection = psycopg.Connection[TupleRow]

# Scalars that a column can have: neither arrays nor pseudo-types, nor the row types of catalogs.
BUILT_IN = """
    SELECT oid::int8, typname::text, typtype::text, typarray::int8, typlen, typstorage::text, typsend::int8
    FROM pg_type
    WHERE oid < 16384 AND typtype IN ('b', 'r', 'm') AND typcategory <> 'A' AND typnamespace = 'pg_catalog'::regnamespace
"""


@pytest.fixture
def conn(database: Database) -> Iterator[Connection]:
    with psycopg.connect(database.dsn, autocommit=True) as made:
        yield made


def test_every_registered_type_is_one_of_the_server(conn: Connection) -> None:
    names = {oid: name for oid, name, *_ in conn.execute(BUILT_IN)}
    assert {oid: scalar.name for oid, scalar in TYPES.scalars.items()}.items() <= names.items()


def test_every_other_built_in_type_is_its_own_text(conn: Connection) -> None:
    others = [row for row in conn.execute(BUILT_IN).fetchall() if row[0] not in TYPES.scalars]
    assert len(others) > 20
    for oid, name, kind, *_ in others:
        assert TYPES.lake_type(oid, -1, 0, {oid: PgType(oid, name, kind)}) == STRING, name
        assert TYPES.binary_reader(oid, -1, STRING) is None, name


def test_what_is_said_of_storage_is_so(conn: Connection) -> None:
    for oid, name, _, _, length, storage, send in conn.execute(BUILT_IN).fetchall():
        lake = TYPES.lake_type(oid, -1, 0, {})
        if not TYPES.carrier(lake).toasted:
            assert (length > 0, storage) == (True, "p"), f"{name} can be TOASTed"
        if oid in TYPES.scalars and TYPES.scalars[oid].binary is not None:
            assert send, f"{name} has no binary form"


def test_the_copy_can_select_every_built_in_type_and_its_array(conn: Connection) -> None:
    for oid, name, kind, array, *_ in conn.execute(BUILT_IN).fetchall():
        known = {oid: PgType(oid, name, kind), array: PgType(array, f"_{name}", element=oid)}
        for type_oid, type_name in ((oid, f'pg_catalog."{name}"'), (array, f'pg_catalog."{name}"[]')):
            if not type_oid:
                continue
            lake = TYPES.lake_type(type_oid, -1, 0, known)
            sql = TYPES.copy_column("v", "`v`", type_oid, -1, 0, known, lake).sql
            parts = [sql, sha256_sql("v"), f"({TYPES.unfit_sql('v', lake) or 'false'})"]
            statement = f"SELECT {', '.join(parts)} FROM (SELECT NULL::{type_name} AS v) AS t"
            assert conn.execute(statement.encode()).fetchone() in ((None, None, None), (None, None, False)), statement


def test_elements_that_go_as_json_have_their_own_text_there(conn: Connection) -> None:
    """Those that would not are cast to text first."""
    checked = 0
    for kind, values in KINDS.items():
        found = conn.execute("SELECT to_regtype(%s)::oid::int8", (kind,)).fetchone()
        scalar = TYPES.scalars.get(found[0]) if found is not None and found[0] is not None else None
        if scalar is None or scalar.lake_type(-1) != STRING or scalar.json_differs:
            continue
        for value in values:
            statement = (
                f"SELECT array_to_json(ARRAY[v]) -> 0, to_json(concat(v)) FROM (SELECT ({value})::{kind} AS v) AS t"
            )
            (there, own) = conn.execute(statement.encode()).fetchall()[0]
            assert isinstance(there, str) and there == own, kind
            checked += 1
    assert checked > 10
