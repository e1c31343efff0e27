"""A writer that changes tables of every kind, many at a time in one transaction, and the tables that it writes to.

What it does is decided by its seed alone; when it is done, by whoever stops it.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg

from servers import Database

TABLES = ("accounts", "order_lines", "events", "journal", "documents", "measures", "counters")
PAUSE_SECONDS = 0.01

_MAKE = """
CREATE TABLE accounts (id int PRIMARY KEY, balance numeric(12,2), note text, at timestamptz DEFAULT now());
CREATE TABLE order_lines (order_id int, line int, quantity int, what text, PRIMARY KEY (order_id, line));
CREATE TABLE events (a int, b text, c float8);
ALTER TABLE events REPLICA IDENTITY FULL;
CREATE TABLE journal (n bigint, line text);
ALTER TABLE journal REPLICA IDENTITY FULL;
CREATE TABLE documents (id int PRIMARY KEY, body text, revision int);
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL;
CREATE TABLE measures (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE measures_1 PARTITION OF measures FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE measures_rest PARTITION OF measures DEFAULT;
CREATE TABLE counters (id int PRIMARY KEY, n bigint);
INSERT INTO accounts SELECT i, i * 1.5, 'account ' || i FROM generate_series(1, 300) i;
INSERT INTO order_lines SELECT i / 3, i % 3, 1, 'thing ' || i FROM generate_series(1, 300) i;
INSERT INTO events SELECT i % 7, 'event', 0.5 FROM generate_series(1, 200) i;
INSERT INTO journal SELECT -i, 'before' FROM generate_series(1, 200) i;
INSERT INTO documents SELECT i, repeat(md5(i::text), 150), 0 FROM generate_series(1, 40) i;
INSERT INTO measures SELECT i, DATE '2024-01-01' + i % 60, 'v' FROM generate_series(1, 200) i;
INSERT INTO counters SELECT i, 0 FROM generate_series(1, 10) i;
"""


def make_tables(database: Database) -> None:
    database.execute(_MAKE)


class InBackground(ABC):
    """Writes in a thread of its own from entering to leaving; what fails in it is raised at the end."""

    def __init__(self, database: Database) -> None:
        self._dsn = database.dsn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._body, name="writer")
        self._failure: BaseException | None = None
        self.committed = 0
        """transactions that are committed so far"""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _body(self) -> None:
        try:
            with psycopg.connect(self._dsn) as connection:
                while not self._stop.is_set():
                    self._stop.wait(self._step(connection))
        except BaseException as error:
            self._failure = error

    @abstractmethod
    def _step(self, connection: psycopg.Connection[Any]) -> float:
        """Write a transaction; seconds until the next."""


class Writer(InBackground):
    """Changes of every kind, as the seed decides."""

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(database)
        self._random = random.Random(seed)
        self._next = 1

    def _step(self, connection: psycopg.Connection[Any]) -> float:
        self._transaction(connection)
        return self._random.random() * PAUSE_SECONDS * 2

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._random.random
        for _ in range(self._random.randint(1, 4)):
            if chance() < 0.1:
                with connection.transaction(force_rollback=True):
                    self._change(connection)
            else:
                self._change(connection)
        if chance() < 0.05:
            connection.rollback()
            return
        connection.commit()
        self.committed += 1

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        choice = self._random.choice
        steps = [
            self._accounts, self._accounts, self._order_lines, self._events, self._journal, self._journal,
            self._documents, self._measures, self._counters, self._counters, self._large,
        ]  # fmt: skip
        statement, values = choice(steps)() if self._random.random() > 0.01 else self._truncate()
        connection.execute(statement.encode(), values)

    def _number(self) -> int:
        self._next += 1
        return 1000 + self._next

    def _accounts(self) -> tuple[str, tuple[Any, ...]]:
        id = self._random.randint(1, 300)
        return self._random.choice([
            ("UPDATE accounts SET balance = balance + 1 WHERE id BETWEEN %s AND %s", (id, id + 5)),
            ("INSERT INTO accounts VALUES (%s, 0, NULL) ON CONFLICT DO NOTHING", (self._number(),)),
            ("DELETE FROM accounts WHERE id = %s", (self._random.randint(1, 1000 + self._next),)),
            ("UPDATE accounts SET id = %s, note = 'moved' WHERE id = %s", (self._number(), id)),
        ])  # fmt: skip

    def _order_lines(self) -> tuple[str, tuple[Any, ...]]:
        order = self._random.randint(1, 100)
        return self._random.choice([
            ("UPDATE order_lines SET quantity = quantity + 1 WHERE order_id = %s", (order,)),
            ("INSERT INTO order_lines SELECT %s, i, 1, 'new' FROM generate_series(1, 3) i", (self._number(),)),
            ("UPDATE order_lines SET order_id = order_id + %s WHERE order_id = %s", (100 * self._number(), order)),
            ("DELETE FROM order_lines WHERE order_id = %s AND line = 1", (order,)),
        ])  # fmt: skip

    def _events(self) -> tuple[str, tuple[Any, ...]]:
        some = "ctid IN (SELECT ctid FROM events WHERE a = %s LIMIT 2)"
        a = self._random.randint(0, 6)
        return self._random.choice([
            ("INSERT INTO events SELECT %s, 'event', 0.5 FROM generate_series(1, 3)", (a,)),
            (f"DELETE FROM events WHERE {some}", (a,)),
            (f"UPDATE events SET b = b || '+' WHERE {some}", (a,)),
        ])  # fmt: skip

    def _journal(self) -> tuple[str, tuple[Any, ...]]:
        return "INSERT INTO journal VALUES (%s, 'line')", (self._number(),)

    def _documents(self) -> tuple[str, tuple[Any, ...]]:
        id = self._random.randint(1, 40)
        new = "repeat(md5(%s::text), 150)"
        return self._random.choice([
            ("UPDATE documents SET revision = revision + 1 WHERE id = %s", (id,)),
            ("UPDATE documents SET id = %s WHERE id = %s", (self._number(), id)),
            (f"UPDATE documents SET body = {new} WHERE id = %s", (self._number(), id)),
            (f"INSERT INTO documents VALUES (%s, {new}, 0)", (number := self._number(), number)),
            ("DELETE FROM documents WHERE id = %s", (id,)),
        ])  # fmt: skip

    def _measures(self) -> tuple[str, tuple[Any, ...]]:
        id = self._random.randint(1, 200)
        return self._random.choice([
            ("INSERT INTO measures VALUES (%s, DATE '2024-01-01' + %s, 'new')", (self._number(), id % 60)),
            ("UPDATE measures SET v = v || '+' WHERE id = %s", (id,)),
            ("UPDATE measures SET at = at + 31 WHERE id = %s AND at < '2024-03-01'", (id,)),
            ("DELETE FROM measures WHERE id = %s", (id,)),
        ])  # fmt: skip

    def _counters(self) -> tuple[str, tuple[Any, ...]]:
        return "UPDATE counters SET n = n + 1 WHERE id = %s", (self._random.randint(1, 10),)

    def _large(self) -> tuple[str, tuple[Any, ...]]:
        first = self._number() * 1000
        return "INSERT INTO journal SELECT %s + i, repeat('x', 50) FROM generate_series(1, 200) i", (first,)

    def _truncate(self) -> tuple[str, tuple[Any, ...]]:
        return "TRUNCATE " + self._random.choice(
            ["events", "measures_1", "measures_rest", "order_lines, events", "journal"]
        ), ()


class SteadyWriter(InBackground):
    """Transactions at a steady rate; `write` makes the n-th of them."""

    def __init__(
        self, database: Database, rate: float, write: Callable[[psycopg.Connection[Any], int], object]
    ) -> None:
        super().__init__(database)
        self._rate, self._write, self._began = rate, write, time.monotonic()

    def _step(self, connection: psycopg.Connection[Any]) -> float:
        self._write(connection, self.committed)
        connection.commit()
        self.committed += 1
        return max(0.0, self.committed / self._rate - (time.monotonic() - self._began))
