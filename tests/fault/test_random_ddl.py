"""Random DDL and DML, several of both in a transaction, under a running mirror; PostgreSQL is the oracle.

`make ddl-test ROUNDS=500 SEED=7` runs many rounds; a failure says its seed.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from mirroring import Mirrored

from proof_size import proof_size
from servers import Database
from wal2lake.observe.status import TableStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = proof_size("WAL2LAKE_TEST_ROUNDS", long=500, short=50)
SEED = int(os.environ.get("WAL2LAKE_TEST_SEED") or random.randrange(10**6))
ROUNDS_BETWEEN_LOOKS = 5
ROUNDS_BETWEEN_STOPS = 25
SECONDS_A_ROUND = 20
PATIENCE = 180.0

TYPES = {
    "integer": ("0", "7"), "text": ("''", "'some text'"), "numeric(8,2)": ("1.50",), "boolean": ("true",),
    "real": ("0.1",), "varchar(10)": ("'v'",), "timestamptz": ("'2024-02-03 04:05:06+02'",), "date": ("'2024-02-03'",),
    "text[]": ("'{}'",), "bytea": (r"'\x00ff'",),
}  # fmt: skip
WIDER = {
    "integer": ("bigint",), "real": ("double precision",), "numeric(8,2)": ("numeric(12,2)",),
    "character varying(10)": ("text", "varchar(40)"),
}  # fmt: skip
OTHER = {"integer": "text", "numeric(8,2)": "numeric(10,4)", "text": "varchar(2000)"}
BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200))"
"""a value that PostgreSQL keeps out of line, and leaves out of updates that don't touch it"""


@dataclass
class Writer:
    """Makes up statements for tables as they are at that moment."""

    database: Database
    rng: random.Random
    names: tuple[str, ...]
    made: int = 0
    done: list[str] = field(default_factory=list)

    def round(self) -> None:
        """One transaction of a few statements on one or two tables."""
        connection = self.database.connect(autocommit=False)
        tables = self.rng.sample(self.names, self.rng.choice([1, 1, 2]))
        for _ in range(self.rng.randint(1, 6)):
            statement = self._statement(connection, self.rng.choice(tables))
            self.done.append(statement)
            try:
                with connection.transaction():
                    connection.execute(statement.encode())
            except psycopg.Error as error:
                self.done[-1] += f" -- {error.diag.message_primary}"
        if self.rng.random() < 0.1:
            connection.rollback()
            self.done.append("ROLLBACK")
        else:
            connection.commit()
            self.done.append("COMMIT")
        connection.close()

    def _statement(self, connection: psycopg.Connection[Any], table: str) -> str:
        columns = {
            str(name): str(type)
            for name, type in connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass "
                "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                (table,),
            )
        }
        free = [name for name in columns if name not in ("id", "part")]
        ddl = self._ddl(table, columns, free) if self.rng.random() < 0.4 else None
        return ddl or self._dml(table, columns, free)

    def _dml(self, table: str, columns: dict[str, str], free: list[str]) -> str:
        some = f"id % 7 = {self.rng.randrange(7)}"
        choice = self.rng.random()
        if choice < 0.4:
            first, count = self.made + 1, self.rng.randint(1, 8)
            self.made += count
            values = [self._value(columns[name]) for name in free]
            part = ["i % 40"] if "part" in columns else []
            names = ["id", *(["part"] if part else []), *free]
            return (
                f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(['i', *part, *values])} "
                f"FROM generate_series({first}, {first + count - 1}) i"
            )
        if choice < 0.8 and free:
            chosen = self.rng.sample(free, self.rng.randint(1, min(2, len(free))))
            sets = ", ".join(f"{name} = {self._value(columns[name])}" for name in chosen)
            return f"UPDATE {table} SET {sets} WHERE {some}"
        if choice < 0.88:
            self.made += 10_000
            return f"UPDATE {table} SET id = id + {self.made} WHERE id = (SELECT min(id) FROM {table})"
        if choice < 0.98:
            return f"DELETE FROM {table} WHERE {some} AND id % 3 = 0"
        return f"TRUNCATE {table}"

    def _value(self, type: str) -> str:  # noqa: PLR0911 - a table of cases
        if self.rng.random() < 0.2:
            return "NULL"
        number = self.rng.randrange(1000)
        match type.partition("(")[0]:
            case "integer" | "bigint" | "double precision" | "real":
                return str(number)
            case "numeric":
                return f"{number}.25"
            case "boolean":
                return "false"
            case "text":
                return BIG if self.rng.random() < 0.3 else f"'t{number}'"
            case "timestamp with time zone" | "date":
                return f"'2025-01-{number % 27 + 1:02d}'"
            case "text[]":
                return "ARRAY['a', NULL]"
            case "bytea":
                return r"'\x01'"
            case _:
                return f"'v{number}'"

    def _ddl(self, table: str, columns: dict[str, str], free: list[str]) -> str | None:  # noqa: PLR0911 - a table of cases
        self.made += 1
        name = self.rng.choice(free) if free else None
        kind = self.rng.choices(
            ["add", "default", "volatile", "drop", "rename", "swap", "widen", "other", "null", "identity", "heap"],
            [4, 4, 1, 3, 4, 1, 4, 1, 1, 1, 1],
        )[0]
        alter = f"ALTER TABLE {table}"
        type = self.rng.choice(list(TYPES))
        match kind:
            case "add":
                return f"{alter} ADD COLUMN c{self.made} {type}"
            case "default":
                return (
                    f"{alter} ADD COLUMN c{self.made} {type} NOT NULL DEFAULT {self.rng.choice(TYPES[type])}".replace(
                        " NOT NULL", ""
                    )
                )
            case "volatile":
                return f"{alter} ADD COLUMN c{self.made} float8 DEFAULT random()"
            case "heap":
                return (
                    f"{alter} ADD COLUMN c{self.made} int; CLUSTER {table} USING keyed_pkey"
                    if table == "keyed"
                    else None
                )
            case "identity":
                return f"{alter} REPLICA IDENTITY {self.rng.choice(['FULL', 'DEFAULT'])}" if table == "keyed" else None
        if name is None:
            return None
        match kind:
            case "drop":
                return f"{alter} DROP COLUMN {name}"
            case "rename":
                return f"{alter} RENAME COLUMN {name} TO r{self.made}"
            case "swap" if len(free) > 1:
                one, two = self.rng.sample(free, 2)
                return (
                    f"{alter} RENAME COLUMN {one} TO moving; {alter} RENAME COLUMN {two} TO {one}; "
                    f"{alter} RENAME COLUMN moving TO {two}"
                )
            case "widen" if columns[name] in WIDER:
                return f"{alter} ALTER COLUMN {name} TYPE {self.rng.choice(WIDER[columns[name]])}"
            case "other" if columns[name] in OTHER:
                return f"{alter} ALTER COLUMN {name} TYPE {OTHER[columns[name]]}"
            case "null":
                return f"{alter} ALTER COLUMN {name} DROP NOT NULL"
        return None


def _answer(mirrored: Mirrored, table: TableStatus) -> None:
    """A table that stops because a change can be read in two ways gets the re-copy that it asks for."""
    if table.state == "ERRORED" and "the catalog does not show how" in str(table.error):
        print(f"asked: {table.error}", flush=True)  # noqa: T201
        mirrored.resync(table.name.removeprefix("public."))


def _follow(mirrored: Mirrored, writer: Writer, rounds: int) -> None:
    with ExitStack() as stack:
        stack.enter_context(mirrored.running())
        for number in range(1, rounds + 1):
            if number % ROUNDS_BETWEEN_STOPS == 0:
                print(f"round {number}", flush=True)  # noqa: T201 - for who watches
                stack.close()
                writer.round()
                stack.enter_context(mirrored.running())
            writer.round()
            if number % ROUNDS_BETWEEN_LOOKS == 0 or number == rounds:
                try:
                    mirrored.becomes_equal(*writer.names, patience=PATIENCE, apply_requests=partial(_answer, mirrored))
                except AssertionError:
                    print(f"\nround {number}, seed {SEED}; the last statements:", *writer.done[-80:], sep="\n  ")  # noqa: T201
                    raise


@pytest.fixture
def writer(database: Database) -> Writer:
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY, a int, b text, c varchar(10))")
    database.execute(
        "CREATE TABLE keyless (id int, a int, b text, c varchar(10)); ALTER TABLE keyless REPLICA IDENTITY FULL"
    )
    database.execute(
        "CREATE TABLE parted (id int, part int, a int, b text, PRIMARY KEY (id, part)) PARTITION BY RANGE (part);"
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (20);"
        "CREATE TABLE parted_2 (b text, part int NOT NULL, id int NOT NULL, a int);"
        "ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (20) TO (40)"
    )
    for name in ("keyed", "keyless", "parted"):
        part = ("part, ", "i % 40, ") if name == "parted" else ("", "")
        database.execute(
            f"INSERT INTO {name} (id, {part[0]}a, b) SELECT -i, {part[1]}i, 'b' FROM generate_series(1, 30) i"
        )
    return Writer(database, random.Random(SEED), ("keyed", "keyless", "parted"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_A_ROUND * ROUNDS + 120)
def test_many_rounds(writer: Writer, tmp_path: Path, spark: SparkSession) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds")  # noqa: T201
    _follow(Mirrored(writer.database, tmp_path / "lake", spark), writer, ROUNDS)
