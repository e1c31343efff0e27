"""The demo's shop and its customers."""

from __future__ import annotations

from random import Random

from servers import Database
from waiting import wait_until
from wal2lake.demo.shop import TABLES, Customers, open_shop


def test_the_shop_opens_with_several_thousand_rows(database: Database) -> None:
    open_shop(database.dsn)
    rows = {table: database.value(f"SELECT count(*) FROM {table}") for table in TABLES}
    assert all(rows.values())
    assert sum(rows.values()) > 5000


def test_customers_insert_update_and_delete_and_leave_the_books_in_order(database: Database) -> None:
    open_shop(database.dsn)
    busy = (
        "SELECT (SELECT count(*) FROM orders WHERE id <= 4000) < 4000 AND EXISTS (SELECT FROM orders WHERE id > 4000) "
        "AND (SELECT count(*) FROM customers) > 2000 AND EXISTS (SELECT FROM customers WHERE 'moved' = ANY (tags))"
    )
    customers = Customers(database.dsn, Random(1))
    customers.start()
    try:
        wait_until(lambda: customers.error or database.value(busy), 60, lambda: f"{customers.transactions} steps")
    finally:
        customers.stop()
    assert customers.error is None
    wrong = (
        "SELECT count(*) FROM orders WHERE total <> "
        "(SELECT sum(quantity * price) FROM order_items WHERE order_id = orders.id)"
    )
    assert database.value(wrong) == 0
