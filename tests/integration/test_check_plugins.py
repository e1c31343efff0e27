"""The preflight check of output plugins, and what a run says of one that can't be used."""

from __future__ import annotations

import pytest
from psycopg import sql

from plugin_slots import OTHER
from servers import Database, has_plugin, require_plugin
from wal2lake.config import Config, SourceConfig
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import SourceRefused
from wal2lake.preflight.collect import Finding, check
from wal2lake.source.publishing import slot


def found(dsn: str, plugin: str) -> dict[str, Finding]:
    config = Config(source={"dsn": dsn, "plugin": plugin}, lake={"path": "./lake-of-no-run"})
    return {finding.object: finding for finding in check(config) if finding.blocks}


@pytest.mark.parametrize("plugin", OTHER)
def test_a_plugin_that_can_be_used_leaves_no_slot_behind(database: Database, plugin: str) -> None:
    require_plugin(plugin)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, at timestamptz, prices numeric(9,2)[])")
    assert found(database.dsn, plugin) == {}
    assert database.rows("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []


def test_a_plugin_that_is_not_installed(database: Database) -> None:
    if has_plugin("wal2json"):
        pytest.skip("the server has it")
    finding = found(database.dsn, "wal2json")["plugin wal2json"]
    assert "not installed" in finding.consequence and "-wal2json" in finding.fix and "pgoutput" in finding.fix
    with pytest.raises(SourceRefused) as refused:
        slot.create(SourceConfig(dsn=database.dsn, plugin="wal2json"), f"missing_{database.name}", "g")
    assert "-wal2json" in refused.value.remedy


def test_a_plugin_that_the_server_does_not_trust(database: Database) -> None:
    known = database.value("SELECT current_setting('output_plugin_libraries', true)")
    if known is None:
        pytest.skip("this version of the server trusts every plugin")
    dsn = f"{database.dsn}{'&' if '?' in database.dsn else '?'}options=-c%20output_plugin_libraries%3Dpgoutput"
    finding = found(dsn, "test_decoding")["plugin test_decoding"]
    assert finding.sql and finding.fix.startswith(
        "ALTER SYSTEM SET output_plugin_libraries = 'pgoutput, test_decoding';"
    )


def test_numbers_that_an_old_wal2json_writes_like_null(database: Database) -> None:
    require_plugin("wal2json")
    database.execute("CREATE TABLE sums (id int PRIMARY KEY, total numeric, rate real, n int)")
    database.execute("CREATE TABLE fine (id int PRIMARY KEY, totals numeric[])")
    assert found(database.dsn, "test_decoding") == {}
    blocked = found(database.dsn, "wal2json")
    if not blocked:
        pytest.skip("this wal2json tells them apart")
    assert set(blocked) == {"public.sums"}
    assert "total, rate" in blocked["public.sums"].consequence and "2.6" in blocked["public.sums"].fix


def test_a_database_in_another_encoding(server: EmbeddedServer, database: Database) -> None:
    name = sql.Identifier(f"latin_{database.name}")
    admin = database.connect()
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'").format(name))
    try:
        blocked = found(server.dsn(f"latin_{database.name}"), "test_decoding")
        assert "LATIN1" in blocked["plugin test_decoding"].consequence
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
