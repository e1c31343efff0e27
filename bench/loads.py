"""The tables and loads that are measured: each is a few statements, the same on every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

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


@dataclass(frozen=True)
class Load:
    """Changes to the table `orders`: what is there before, and what is written and then captured."""

    name: str
    rows: int
    """changes that it makes"""
    transactions: int
    before: Callable[[psycopg.Connection[Any]], None]
    write: Callable[[psycopg.Connection[Any]], None]


def one_transaction(rows: int) -> Load:
    def write(connection: psycopg.Connection[Any]) -> None:
        fill_orders(connection, rows)

    return Load(f"one transaction of {rows:,} inserts", rows, 1, lambda _: None, write)


def single_row_updates(times: int) -> Load:
    rows = max(100, times // 2)

    def before(connection: psycopg.Connection[Any]) -> None:
        fill_orders(connection, rows)
        connection.execute(UPDATES)

    def write(connection: psycopg.Connection[Any]) -> None:
        # The WAL is the same, and so many waits for the disk would say nothing about capture.
        connection.execute("SET synchronous_commit = off")
        connection.execute("CALL update_orders(%s, %s)", (times, rows))
        connection.execute("RESET synchronous_commit")

    return Load(f"{times:,} single-row update transactions", times, times, before, write)


def fill_orders(connection: psycopg.Connection[Any], rows: int, table: str = "orders") -> None:
    connection.execute(f"INSERT INTO {table} SELECT {ORDER_VALUES} FROM generate_series(1::bigint, {rows}) AS n")


def fill_readings(connection: psycopg.Connection[Any], rows: int) -> None:
    connection.execute(f"INSERT INTO readings SELECT {READING_VALUES} FROM generate_series(1, {rows}) AS n")
