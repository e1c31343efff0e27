"""The tables and loads that are measured: each is a few statements, the same on every run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from wal2lake.demo.server import HOST, SUPERUSER, find_binaries

from .ground import DATABASE, Ground

ORDERS = """
    CREATE TABLE orders (
        id bigint PRIMARY KEY, customer int NOT NULL, status text NOT NULL, quantity int NOT NULL,
        amount numeric(12,2) NOT NULL, placed_at timestamptz NOT NULL)
"""
ORDER_VALUES = """
    n, (n * 7919 % 100003)::int, (ARRAY['new', 'paid', 'shipped', 'returned'])[1 + n % 4], (n % 50)::int,
    (n % 1000000) / 100.0, timestamptz '2024-01-01 00:00Z' + n * interval '1.7 seconds'
"""
UPDATES = """
    CREATE PROCEDURE update_orders(times int, rows int) LANGUAGE plpgsql AS $$
    BEGIN
        FOR n IN 1..times LOOP
            UPDATE orders SET quantity = n, status = 'paid' WHERE id = 1 + (n * 7919::bigint) % rows;
            COMMIT;
        END LOOP;
    END $$
"""
INSERTS = f"""
    CREATE PROCEDURE insert_orders(rows int, size int) LANGUAGE plpgsql AS $$
    BEGIN
        FOR low IN 1..rows BY size LOOP
            INSERT INTO orders SELECT {ORDER_VALUES}
            FROM generate_series(low::bigint, least(low + size - 1, rows)) AS n;
            COMMIT;
        END LOOP;
    END $$
"""
READINGS = """
    CREATE TABLE readings (
        id int PRIMARY KEY, device bigint NOT NULL, label text NOT NULL, amount numeric(12,2) NOT NULL,
        taken_at timestamptz NOT NULL, valid boolean NOT NULL, day date, details jsonb)
"""
READING_VALUES = """
    n, n * 1000003::bigint, 'reading ' || md5(n::text), (n % 10000000) / 100.0,
    timestamptz '2024-01-01 00:00Z' + n * interval '13.000007 seconds', n % 3 = 0, date '2024-01-01' + n % 700,
    jsonb_build_object('sensor', n % 97, 'unit', 'mm', 'tags', jsonb_build_array('a', n % 7))
"""
# Ten kinds of column, each six times, but for the key: kind, how the c-th column's value comes from the row's number.
WIDE_KINDS: Mapping[str, str] = {
    "int": "(n * {c} % 1000003)::int",
    "bigint": "n * 1000003 * {c}",
    "numeric(14,4)": "(n * {c} % 10000000) / 10000.0",
    "text": "'value {c} of ' || md5((n % 5003)::text)",
    "timestamptz": "timestamptz '2024-01-01 00:00Z' + (n * {c}) * interval '1.000003 seconds'",
    "date": "date '2024-01-01' + ((n + {c}) % 700)::int",
    "boolean": "(n + {c}) % 3 = 0",
    "double precision": "(n * {c} % 100003) / 7.0",
    "jsonb": "jsonb_build_object('column', {c}, 'row', n % 997)",
    "uuid": "md5((n * {c})::text)::uuid",
}
WIDE_COLUMNS = 60
NULL_EVERY = 11
"""every so manieth value of the wide table is NULL"""


@dataclass(frozen=True)
class Load:
    """Changes to a few tables: what is there before, and what is written and then captured."""

    name: str
    changes: Mapping[str, int]
    """changes that it makes, by table"""
    transactions: int
    before: Callable[[Ground], None]
    write: Callable[[Ground], None]

    @property
    def rows(self) -> int:
        return sum(self.changes.values())


def one_transaction(rows: int) -> Load:
    def before(ground: Ground) -> None:
        ground.connection.execute(ORDERS)

    def write(ground: Ground) -> None:
        fill_orders(ground.connection, rows)

    return Load(f"one transaction of {rows:,} inserts", {"orders": rows}, 1, before, write)


def equal_transactions(rows: int, size: int) -> Load:
    """Inserts in transactions of `size` rows each."""
    count = -(-rows // size)

    def before(ground: Ground) -> None:
        ground.connection.execute(ORDERS)
        ground.connection.execute(INSERTS)

    def write(ground: Ground) -> None:
        _without_waits(ground.connection, "CALL insert_orders(%s, %s)", (rows, size))

    return Load(f"{count:,} transactions of {size:,} inserts", {"orders": rows}, count, before, write)


def single_row_updates(times: int) -> Load:
    rows = max(100, times // 2)

    def before(ground: Ground) -> None:
        ground.connection.execute(ORDERS)
        fill_orders(ground.connection, rows)
        ground.connection.execute(UPDATES)

    def write(ground: Ground) -> None:
        _without_waits(ground.connection, "CALL update_orders(%s, %s)", (times, rows))

    return Load(f"{times:,} single-row update transactions", {"orders": times}, times, before, write)


def run_pgbench(ground: Ground, *arguments: str, waiting: bool = False) -> None:
    """`waiting`: a commit waits until it is on disk."""
    command = [
        str(find_binaries() / "pgbench"), "--host", HOST, "--port", str(ground.server.port),
        "--username", SUPERUSER, *arguments, DATABASE,
    ]  # fmt: skip
    environment = {**os.environ, "PGPASSWORD": ground.server.password}
    if not waiting:
        environment["PGOPTIONS"] = "-c synchronous_commit=off"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pgbench failed: {done.stderr.strip()}")


def pgbench_mix(transactions: int, scale: int = 10, clients: int = 4) -> Load:
    """TPC-B as pgbench plays it: three updates and an insert into a table without a key, each."""
    each = -(-transactions // clients)
    total = each * clients

    def before(ground: Ground) -> None:
        run_pgbench(ground, "--initialize", "--scale", str(scale), "--quiet")
        ground.connection.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")

    def write(ground: Ground) -> None:
        run_pgbench(
            ground, "--client", str(clients), "--transactions", str(each), "--no-vacuum", "--protocol", "prepared"
        )

    tables = ("pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
    name = f"pgbench's mix: {total:,} transactions of 4 changes, scale {scale}"
    return Load(name, dict.fromkeys(tables, total), total, before, write)


def wide_table(inserts: int, size: int = 1000) -> Load:
    """Transactions of inserts, then of updates of every other row, in a table of 60 columns."""
    updates, kinds = inserts // 2, list(WIDE_KINDS)
    columns = [("id", "bigint PRIMARY KEY", "n")]
    for c in range(1, WIDE_COLUMNS):
        kind = kinds[c % len(kinds)]
        value = WIDE_KINDS[kind].format(c=c)
        columns.append((f"c{c}", kind, f"CASE WHEN (n + {c}) % {NULL_EVERY} > 0 THEN {value} END"))
    definition = ", ".join(f"{name} {kind}" for name, kind, _ in columns)
    values = ", ".join(value for _, _, value in columns)
    changed = "c1 = coalesce(c1, 0) + 1, c3 = 'changed ' || id, c4 = now(), c8 = c8 || '{\"changed\": true}'"

    def before(ground: Ground) -> None:
        ground.connection.execute(f"CREATE TABLE wide ({definition})".encode())
        ground.connection.execute(
            f"""
            CREATE PROCEDURE change_wide(rows int, size int) LANGUAGE plpgsql AS $$
            BEGIN
                FOR low IN 1..rows BY size LOOP
                    INSERT INTO wide SELECT {values}
                    FROM generate_series(low::bigint, least(low + size - 1, rows)) AS n;
                    COMMIT;
                END LOOP;
                FOR low IN 1..rows BY size LOOP
                    UPDATE wide SET {changed} WHERE id BETWEEN low AND low + size - 1 AND id % 2 = 0;
                    COMMIT;
                END LOOP;
            END $$
            """.encode()
        )

    def write(ground: Ground) -> None:
        _without_waits(ground.connection, "CALL change_wide(%s, %s)", (inserts, size))

    name = f"a table of {WIDE_COLUMNS} columns: {inserts:,} inserts and {updates:,} updates"
    return Load(name, {"wide": inserts + updates}, 2 * -(-inserts // size), before, write)


def fill_orders(connection: psycopg.Connection[Any], rows: int, table: str = "orders") -> None:
    connection.execute(f"INSERT INTO {table} SELECT {ORDER_VALUES} FROM generate_series(1::bigint, {rows}) AS n")


def fill_readings(connection: psycopg.Connection[Any], rows: int) -> None:
    connection.execute(f"INSERT INTO readings SELECT {READING_VALUES} FROM generate_series(1, {rows}) AS n")


def _without_waits(connection: psycopg.Connection[Any], statement: str, arguments: tuple[int, int]) -> None:
    # The WAL is the same, and so many waits for the disk would say nothing about capture.
    connection.execute("SET synchronous_commit = off")
    connection.execute(statement.encode(), arguments)
    connection.execute("RESET synchronous_commit")
