"""The statements of the state store are found by name, and none is left over."""

from __future__ import annotations

import re
from pathlib import Path

import wal2lake.state.postgres.queries as module
from wal2lake.state.postgres.queries import query, statements

SOURCES = "\n".join(file.read_text("utf-8") for file in sorted(Path(module.__file__).parent.glob("*.py")))
FILES = "\n".join(file.read_text("utf-8") for file in sorted(Path(module.__file__).parents[1].glob("sql/*.sql")))


def test_every_statement_that_is_used_is_there() -> None:
    used = set(re.findall(r'query\("(\w+)"\)', SOURCES))
    assert len(used) > 30
    assert used <= set(statements())


def test_every_statement_is_used() -> None:
    assert [name for name in statements() if f'"{name}"' not in SOURCES and f"{{{name}}}" not in FILES] == []


def test_names_are_given_once() -> None:
    names = re.findall(r"^-- name: (\w+)$", FILES, re.MULTILINE)
    assert sorted(names) == sorted(statements())


def test_a_statement_contains_the_parts_that_it_names() -> None:
    assert "{" not in "".join(statements().values())
    assert b"INSERT INTO wal2lake.tables" in query("claim_tables")
    assert b"RETURNING oid" in query("claim_tables")
