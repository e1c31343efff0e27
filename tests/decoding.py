"""The decoder on the server's own bytes: a database whose stream is read through SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from inline_decoder import Cut, InlineDecoder
from wal2lake.decode import Relation, Target
from wal2lake.position import ZERO
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import PgType, delimiter, lake_type

HEADER = b"w" + bytes(24)
SESSION = (
    "SET DateStyle = ISO; SET IntervalStyle = postgres; SET TimeZone = 'UTC'; SET extra_float_digits = 3; "
    "SET bytea_output = hex; SET client_encoding = 'UTF8'"
)


class Source:
    """A database with a publication of all its tables and a slot, read through SQL."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.run(SESSION, "CREATE PUBLICATION p FOR ALL TABLES")
        self.run("CREATE TYPE mood AS ENUM ('so so', 'NULL')", "CREATE TYPE pair AS (x int, y text)")
        self.run("CREATE DOMAIN price AS numeric(10,2)")
        self.schemas: dict[int, TableSchema] = {}
        self.decoder = InlineDecoder(self.resolve, ZERO)
        self.binary_decoder = InlineDecoder(self.resolve, ZERO, binary=True)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def open_slot(self) -> None:
        self.run("SELECT pg_create_logical_replication_slot('decode_' || current_database(), 'pgoutput')")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode()).fetchall()

    def resolve(self, relation: Relation) -> Target:
        types = {
            oid: PgType(oid, *facts)
            for oid, *facts in self.rows(
                "SELECT oid::int, typname, typtype::text, (CASE WHEN typcategory = 'A' THEN typelem ELSE 0 END)::int,"
                " typbasetype::int, typtypmod, typndims, typdelim::text FROM pg_type"
            )
        }
        columns = tuple(
            Column(
                c.name,
                c.type_oid,
                c.typmod,
                types[c.type_oid].name,
                lake_type(c.type_oid, c.typmod, 0, types),
                delimiter=delimiter(c.type_oid, types),
            )
            for c in relation.columns
        )
        key = tuple(c.name for c in relation.columns if c.key and relation.identity is not ReplicaIdentity.FULL)
        schema = TableSchema(relation.oid, TableId(relation.namespace, relation.name), columns, key, relation.identity)
        self.schemas[relation.oid] = schema
        return Target(schema, 1)

    def cut(self) -> Cut:
        return self._cut(self.decoder, "get")

    def cut_binary(self) -> Cut:
        """What the next `cut` gives, from values in binary form."""
        return self._cut(self.binary_decoder, "peek")

    def _cut(self, decoder: InlineDecoder, how: str) -> Cut:
        binary = decoder is self.binary_decoder
        changes = self.rows(
            f"SELECT data FROM pg_logical_slot_{how}_binary_changes('decode_' || current_database(), NULL, NULL,"
            f" 'proto_version', '1', 'publication_names', 'p', 'binary', '{binary}')"
        )
        decoder.feed([HEADER + data for (data,) in changes])
        return decoder.cut()

    def close(self) -> None:
        self.run(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )
        self.connection.close()


KINDS: dict[str, Sequence[str]] = {
    "boolean": ["true", "false"],
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "2147483647"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "float4": ["'-0'", "'Infinity'", "0.1", "3.4028235e38", "1e-45", "1::float4/3"],
    "float8": ["'-0'", "'-Infinity'", "0.1", "1.7976931348623157e308", "5e-324", "1::float8/3"],
    "numeric(38,10)": ["9999999999999999999999999999.9999999999", "-0.0000000001", "0", "1.5"],
    "numeric(5,-2)": ["123400", "-100"],
    "numeric(3,5)": ["0.00999"],
    "text": ["''", "'NULL'", r"E'\\N a\tb\nc\\ \"q\" 😀'", "repeat('x', 12)", "repeat('é', 13)"],
    "char(5)": ["'ab'"],
    "name": ["'n'"],
    '"char"': ["'c'"],
    "bytea": [r"'\x00ff5c22'", "''", "decode(repeat('00ff', 1000), 'hex')"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'2024-02-29'"],
    "timestamp": ["'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'2024-03-31 02:30:00.1'", "'1969-12-31 23:59:59.5'"],
    "timestamptz": ["'0001-01-01 00:00+00'", "'9999-12-31 23:59:59.999999+00'", "'2024-03-31 02:30+02'"],
    "jsonb": [r"""'{"a": "\u00e9 \"x\" 😀", "b": [1, null]}'"""],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "interval": ["'1 year 2 months -3 days 04:05:06.789'"],
    "inet": ["'10.0.0.1/8'", "'::1'"],
    "int4range": ["'[1,5)'"],
    "int4multirange": ["'{[1,5),[7,9)}'"],
    "numeric": ["'NaN'", "1e40", "-0.10"],
    "json": ["""'{"a" : "\\u00e9"}'"""],
    "time": ["'23:59:59.999999'"],
    "box": ["'((1,1),(0,0))'"],
    "point": ["'(1.5,-2)'"],
    "tsvector": ["'a:1 ''b c'':2'"],
    "bit(4)": ["'1010'"],
    "mood": ["'so so'", "'NULL'"],
    "pair": ["""(1, 'a "b", c')""", "(NULL, '')", "(NULL, NULL)"],
    "price": ["12.5"],
}
