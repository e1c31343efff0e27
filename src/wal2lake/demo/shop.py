"""The demo's database: a small shop, and threads that change it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any, LiteralString

import psycopg

from ..position import Lsn

TABLES = ("customers", "products", "orders", "order_items")
STEPS_PER_SECOND = 15

SCHEMA: LiteralString = """
CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'returned');

CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    email text NOT NULL,
    tags text[] NOT NULL DEFAULT '{}',
    address jsonb,
    joined_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE products (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    price numeric(10,2) NOT NULL,
    stock int NOT NULL,
    attributes jsonb NOT NULL DEFAULT '{}'
);
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status order_status NOT NULL DEFAULT 'new',
    total numeric(12,2) NOT NULL DEFAULT 0,
    note text,
    placed_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE order_items (
    order_id bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    line int NOT NULL,
    product_id bigint NOT NULL REFERENCES products,
    quantity int NOT NULL,
    price numeric(10,2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
"""

STOCK: LiteralString = """
INSERT INTO customers (name, email, tags, address, joined_at)
SELECT 'Customer ' || i, 'customer' || i || '@example.com',
       CASE i % 3 WHEN 0 THEN '{}' WHEN 1 THEN '{newsletter}' ELSE '{newsletter,vip}' END::text[],
       jsonb_build_object('city', (ARRAY['Oslo', 'Kraków', 'Lima', '東京'])[1 + i % 4], 'zip', to_char(i, 'FM00000')),
       now() - i * interval '1 hour'
  FROM generate_series(1, 2000) AS i;

INSERT INTO products (name, price, stock, attributes)
SELECT 'Product ' || i, (i * 7919 % 20000) / 100.0 + 1, 1000, jsonb_build_object('colour', i % 7, 'weight', i / 8.0)
  FROM generate_series(1, 300) AS i;

INSERT INTO orders (customer_id, status, note, placed_at)
SELECT 1 + i * 31 % 2000, (enum_range(NULL::order_status))[1 + i % 4],
       CASE WHEN i % 5 = 0 THEN 'leave it at the door' END, now() - i * interval '10 minutes'
  FROM generate_series(1, 4000) AS i;

INSERT INTO order_items (order_id, line, product_id, quantity, price)
SELECT o.id, line, p.id, 1 + line % 3, p.price
  FROM orders AS o, generate_series(1, 1 + o.id::int % 4) AS line, products AS p
 WHERE p.id = 1 + (o.id * 13 + line) % 300;

UPDATE orders AS o
   SET total = (SELECT sum(quantity * price) FROM order_items WHERE order_id = o.id);
"""

NEW_CUSTOMER: LiteralString = """
INSERT INTO customers (name, email, tags, address)
VALUES (%(name)s, %(name)s || '@example.com', ARRAY['new'], jsonb_build_object('city', 'Oslo'))
"""
MOVED: LiteralString = """
UPDATE customers SET address = address || jsonb_build_object('zip', %(number)s::text), tags = tags[:3] || 'moved'::text
 WHERE id = (SELECT id FROM customers ORDER BY random() LIMIT 1)
"""
PRICED: LiteralString = """
UPDATE products SET price = round(price * %(factor)s::numeric, 2) + 0.01
 WHERE id = (SELECT id FROM products ORDER BY random() LIMIT 1)
"""
NEXT_STATUS: LiteralString = """
UPDATE orders
   SET status = CASE status WHEN 'new' THEN 'paid' WHEN 'paid' THEN 'shipped' ELSE 'returned' END::order_status
 WHERE id = (SELECT id FROM orders ORDER BY random() LIMIT 1)
"""
CANCELLED: LiteralString = """
DELETE FROM orders WHERE id = (SELECT id FROM orders ORDER BY random() LIMIT 1)
"""
NEW_ORDER: LiteralString = """
INSERT INTO orders (customer_id) SELECT id FROM customers ORDER BY random() LIMIT 1 RETURNING id
"""
NEW_ITEMS: LiteralString = """
WITH chosen AS (
    SELECT id, price, row_number() OVER () AS line
      FROM (SELECT id, price FROM products ORDER BY random() LIMIT %(lines)s) AS any_products
), taken AS (
    UPDATE products SET stock = stock - 1 WHERE id IN (SELECT id FROM chosen)
)
INSERT INTO order_items (order_id, line, product_id, quantity, price)
SELECT %(order)s, line, id, 1, price FROM chosen
"""
NEW_TOTAL: LiteralString = """
UPDATE orders SET total = (SELECT sum(quantity * price) FROM order_items WHERE order_id = %(order)s)
 WHERE id = %(order)s
"""


def open_shop(dsn: str) -> None:
    """Create and fill the tables."""
    with psycopg.connect(dsn) as connection:
        connection.execute(SCHEMA)
        connection.execute(STOCK)


def last_position(dsn: str) -> Lsn:
    """The current end of the WAL: everything committed is before it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        (position,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("0/0",)
    return Lsn.parse(position)


class Customers:
    """A thread that changes the shop, in single statements and in larger transactions."""

    def __init__(self, dsn: str, random: Random | None = None) -> None:
        self.transactions = 0
        self.error: Exception | None = None
        self._dsn = dsn
        self._random = random or Random()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._shop, name="customers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait until the last transaction has ended. May be called more than once."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _shop(self) -> None:
        steps: list[Callable[[psycopg.Connection[Any]], object]] = [
            self._order, self._order, self._order, self._change_mind,
            lambda c: c.execute(NEW_CUSTOMER, {"name": f"customer-{self._random.randrange(10**9)}"}),
            lambda c: c.execute(MOVED, {"number": self._random.randrange(10**5)}),
            lambda c: c.execute(PRICED, {"factor": f"{self._random.uniform(0.9, 1.1):.3f}"}),
            lambda c: c.execute(NEXT_STATUS),
            lambda c: c.execute(NEXT_STATUS),
            lambda c: c.execute(CANCELLED),
        ]  # fmt: skip
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._closing.wait(1 / STEPS_PER_SECOND):
                    self._random.choice(steps)(connection)
                    self.transactions += 1
        except psycopg.Error as error:
            self.error = error

    def _order(self, connection: psycopg.Connection[Any]) -> None:
        """An order in three tables, in one transaction."""
        with connection.transaction():
            (order,) = connection.execute(NEW_ORDER).fetchone() or (None,)
            values = {"order": order, "lines": self._random.randint(1, 4)}
            connection.execute(NEW_ITEMS, values)
            connection.execute(NEW_TOTAL, values)

    def _change_mind(self, connection: psycopg.Connection[Any]) -> None:
        """An order that is rolled back."""
        with connection.transaction():
            self._order(connection)
            raise psycopg.Rollback
