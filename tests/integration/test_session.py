"""Sessions of every kind have the settings that `source/sessions/session.py` lists, whatever role, database and environment say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from oracle import assert_equal_tables
from servers import Database
from wal2lake.config import Config, SourceConfig
from wal2lake.mirror import Mirror
from wal2lake.source.sessions.connect import connect, replication_connect
from wal2lake.source.sessions.session import SETTINGS, SHOW, differing
from wal2lake.state.postgres.connection import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHERWISE = {
    "DateStyle": "German, DMY", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Tokyo", "extra_float_digits": "-5",
    "bytea_output": "escape", "lc_monetary": "C.utf8", "xmlbinary": "hex", "xmloption": "document",
    "quote_all_identifiers": "on", "standard_conforming_strings": "off", "transform_null_equals": "on",
    "array_nulls": "off", "gin_fuzzy_search_limit": "3", "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on", "client_min_messages": "error", "statement_timeout": "300ms",
    "lock_timeout": "300ms", "idle_in_transaction_session_timeout": "300ms", "idle_session_timeout": "300ms",
    "transaction_timeout": "300ms", "row_security": "on", "search_path": "public",
}  # fmt: skip


@pytest.fixture
def hostile(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database in whose sessions everything is otherwise, and an environment that says more of the kind."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, r tstzrange, i interval, m money, d date[], f float8, b bytea);"
        "INSERT INTO t SELECT g, tstzrange('2024-05-06 07:08:09+00', NULL), interval '1 mon -3 days', 1234.5::money, "
        "ARRAY[DATE '2024-02-01'], 0.1::float8 + g, decode('00ff', 'hex') FROM generate_series(1, 50) g"
    )
    known = {name for (name,) in database.rows("SELECT lower(name) FROM pg_settings")}
    name = psycopg.sql.Identifier(database.name)
    for setting, value in OTHERWISE.items():
        if setting.lower() in known:
            statement = psycopg.sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                name, psycopg.sql.Identifier(setting.lower()), psycopg.sql.Literal(value)
            )
            database.connect().execute(statement)
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    monkeypatch.setenv("PGOPTIONS", "-c extra_float_digits=0")
    yield database


def test_ordinary_replication_and_state_store_sessions_have_the_same_settings(hostile: Database) -> None:
    source = SourceConfig(dsn=hostile.dsn)
    with connect(source) as ordinary, open_session(hostile.dsn, 10, "test") as store:
        assert differing(ordinary.execute(SHOW.encode()).fetchall()) == {}
        assert differing([tuple(row.values()) for row in store.execute(SHOW.encode()).fetchall()]) == {}
        shown = {name for name, _ in ordinary.execute(SHOW.encode()).fetchall()}
        assert set(SETTINGS) - shown <= {"transaction_timeout"}
    pgconn = replication_connect(source)
    try:
        result = pgconn.exec_(SHOW.encode())
        rows = [[(result.get_value(row, i) or b"").decode() for i in (0, 1)] for row in range(result.ntuples)]
    finally:
        pgconn.finish()
    assert rows and differing(rows) == {}


def test_copy_and_stream_agree_in_a_database_with_other_settings_and_short_timeouts(
    hostile: Database, tmp_path: Path, spark: SparkSession
) -> None:
    config = Config(
        source={"dsn": hostile.dsn},
        lake={"path": str(tmp_path / "lake")},
        groups=[{"name": "default", "flush_interval": 0.1}],
    )
    first = Mirror(config, spark).run_once()
    assert not first.missed, [(table.name, table.error) for table in first.missed]
    hostile.connect().execute("INSERT INTO t SELECT id + 100, r, i, m, d, f, b FROM t")
    hostile.connect().execute("UPDATE t SET i = i * 2 WHERE id < 10")
    second = Mirror(config, spark).run_once()
    assert not second.missed, [(table.name, table.error) for table in second.missed]
    assert_equal_tables(hostile, tmp_path / "lake", ["t"])
    (table,) = Mirror(config).status().to_json()["tables"]
    assert table["last_commit_at"].endswith("+00:00")
