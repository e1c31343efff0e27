"""The preflight check against a real server."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import ConfigFactory
from servers import Database
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.cli import main
from wal2lake.config import load_config
from wal2lake.position import Lsn
from wal2lake.preflight.collect import Finding, Severity, check
from wal2lake.source.publishing import publication
from wal2lake.source.publishing.slot import slot_name
from wal2lake.source.sessions.connect import connect
from wal2lake.source.sessions.server import server_facts
from wal2lake.source.tables.facts import heap_facts
from wal2lake.state.postgres import PostgresStateStore

BY_WAL = {"name": "default", "capture": "wal"}


def by_object(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.object: finding for finding in findings}


def test_a_database_that_is_ready_has_nothing_that_blocks(database: Database, config: ConfigFactory) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric(10,2), at timestamptz)")
    findings = check(config())
    assert [finding for finding in findings if finding.level is not Severity.NOTES] == []


def test_each_relation_is_judged_by_what_it_is(database: Database, config: ConfigFactory) -> None:
    database.execute(
        """
        CREATE TABLE keyless (v text);
        CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
        CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY);
        CREATE VIEW seen AS SELECT 1;
        CREATE TABLE typed (id int PRIMARY KEY, span interval, grid int[][], total numeric,
                            twice int GENERATED ALWAYS AS (id * 2) STORED);
        CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
        ALTER TABLE parted_1 REPLICA IDENTITY NOTHING;
        """
    )
    found = by_object(check(config(groups=[{**BY_WAL, "tables": ["public.*", "none.*", "public.gone"]}])))
    warned = {name for name, finding in found.items() if finding.level is Severity.WARNS}
    assert warned == {"none.*"}
    blocking = {"public.keyless", "public.deferred", "public.parted", "public.gone"}
    assert {name for name, finding in found.items() if finding.blocks} == blocking
    for name in blocking - {"public.gone"}:
        assert "append_only = true" in found[name].consequence
        database.execute(found[name].fix)
    assert {finding.object for finding in check(config(groups=[BY_WAL])) if finding.blocks} == set()
    notes = {name for name, finding in found.items() if finding.level is Severity.NOTES}
    assert {"public.fleeting", "public.seen", "type interval", "type integer[]", "type numeric"} <= notes


def test_leaves_that_are_tables_are_judged_one_by_one(database: Database, config: ConfigFactory) -> None:
    database.execute(
        """
        CREATE TABLE parted (id int PRIMARY KEY, v text, span interval) PARTITION BY RANGE (id);
        CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
        CREATE TABLE middle PARTITION OF parted FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
        CREATE TABLE parted_2 PARTITION OF middle FOR VALUES FROM (10) TO (20);
        CREATE UNLOGGED TABLE parted_3 PARTITION OF middle FOR VALUES FROM (20) TO (30);
        CREATE TABLE empty (id int, v text) PARTITION BY RANGE (id);
        """
    )
    group = {"name": "default", "partitions": "leaf"}
    masks = {
        "public.parted": {"mask": {"v": "sha256"}},
        "public.middle": {"flush_interval": 9},
        "empty": {"where": "true"},
    }
    found = by_object(check(config(groups=[group], tables=masks)))
    told = {name: finding for name, finding in found.items() if finding.level is not Severity.NOTES}
    assert told == {}
    notes = {name for name in found if name.startswith("public.")}
    assert notes == {"public.parted_3"} and "unlogged" in found["public.parted_3"].consequence
    assert "public.parted_2.span" in found["type interval"].consequence
    assert "public.parted.span" not in found["type interval"].consequence
    database.execute("ALTER TABLE parted_1 REPLICA IDENTITY NOTHING")
    masks["public.parted"] = {"mask": {"gone": "null"}}
    found = by_object(check(config(groups=[group], tables=masks)))
    assert found["public.parted_1"].blocks
    assert found["tables"].blocks and "no column gone" in found["tables"].consequence


def test_one_run_of_the_script_gives_an_ordinary_role_all_that_it_needs(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    role = f"{database.name}_poor"
    database.execute(
        f"""
        CREATE ROLE {role} LOGIN PASSWORD 'x'; CREATE ROLE {role}_boss;
        CREATE SCHEMA apart;
        CREATE TABLE apart.a (id int PRIMARY KEY); ALTER TABLE apart.a OWNER TO {role}_boss;
        CREATE TABLE supers (id int PRIMARY KEY);
        CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id); ALTER TABLE parted OWNER TO {role}_boss;
        CREATE TABLE apart.leaf PARTITION OF parted FOR VALUES FROM (0) TO (10);
        CREATE TABLE keyless (v text); ALTER TABLE keyless OWNER TO {role}_boss;
        CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY);
        ALTER TABLE supers ENABLE ROW LEVEL SECURITY; ALTER TABLE supers FORCE ROW LEVEL SECURITY;
        """
    )
    file = tmp_path / "shop.toml"
    file.write_text(
        f'[source]\ndsn = "{database.dsn}?user={role}&password=x"\n[lake]\npath = "{tmp_path / "lake"}"\n'
        '[[groups]]\nname = "default"\ntables = ["public.*", "apart.*"]\n'
    )
    try:
        assert main(["-c", str(file), "check", "--sql"]) == 1
        script = capsys.readouterr().out
        assert all(line.startswith("--") or line.endswith(";") for line in script.splitlines()), script
        database.execute(script)
        # The tables of others are published for it.
        file.write_text(file.read_text() + 'publication = "wal2lake_default_tables"\n')
        assert main(["-c", str(file), "check", "--sql"]) == 0
        assert capsys.readouterr().out == ""
        # A schema that was made for the role needs no right to make it.
        store = PostgresStateStore(load_config(file).source.dsn.get_secret_value())
        store.create()
        store.close()
        assert main(["-c", str(file), "check"]) == 0
    finally:
        roles = f"{role}, {role}_boss"
        database.execute(f"REASSIGN OWNED BY {roles} TO CURRENT_USER; DROP OWNED BY {roles}; DROP ROLE {roles}")


def test_what_is_made_and_owned_needs_no_right_to_make_it(database: Database, config: ConfigFactory) -> None:
    role = f"{database.name}_poor"
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'; GRANT CREATE ON DATABASE {database.name} TO {role};"
        f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {role}"
    )
    made = config(source={"dsn": f"{database.dsn}?user={role}&password=x"})
    try:
        store = PostgresStateStore(made.source.dsn.get_secret_value())
        store.create()
        store.close()
        with connect(made.source) as conn:
            assert publication.ensure(conn, publication.publication_name("default"), [])
        database.execute(f"REVOKE CREATE ON DATABASE {database.name} FROM {role}")
        assert not [finding for finding in check(made) if finding.blocks]
    finally:
        database.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("by_filter", [False, True])
def test_a_locked_table_does_not_delay_the_check(database: Database, config: ConfigFactory, by_filter: bool) -> None:
    database.execute(
        """
        CREATE TABLE plain (id int PRIMARY KEY); INSERT INTO plain SELECT generate_series(1, 999); ANALYZE plain;
        CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE leaf PARTITION OF parted FOR VALUES FROM (0) TO (10);
        """
    )
    if by_filter:
        database.execute("CREATE PUBLICATION theirs FOR TABLE plain WHERE (id > 3), parted")
    made = config(groups=[{"name": "default", "publication": "theirs"} if by_filter else {"name": "default"}])
    with database.connect(autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute("LOCK TABLE plain, ONLY parted, leaf IN ACCESS EXCLUSIVE MODE")
        try:
            findings = pool.submit(check, made).result(20)
        finally:
            other.rollback()
    told = [finding for finding in findings if finding.level is not Severity.NOTES]
    assert [finding.level for finding in told] == ([Severity.WARNS] if by_filter else [])
    with connect(made.source) as conn:
        (unmeasured,) = heap_facts(conn, [database.value("SELECT 'plain'::regclass::oid::int8")])
    assert unmeasured.bytes > 0


def test_a_slot_of_ours_made_by_something_else_is_noticed(database: Database, config: ConfigFactory) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    name = slot_name("odd", database.name)
    database.rows("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [name])
    try:
        found = by_object(check(config(groups=[{"name": "odd"}])))
        assert found[f"slot {name}"].blocks
    finally:
        database.rows("SELECT pg_drop_replication_slot(%s)", [name])


def test_a_slot_and_a_change_log_that_do_not_belong_together_are_noticed(
    database: Database, config: ConfigFactory
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    made = config(groups=[{"name": "apart"}])
    log = ChangeLog(storage_for(made.changelog_path), "apart")
    with connect(made.source) as conn:
        facts = server_facts(conn)
    name = slot_name("apart", database.name)
    log.create(facts, name)
    log.begin(Lsn(1))
    assert "is gone" in by_object(check(made))[f"slot {name}"].consequence
    log.create(replace(facts, system_identifier="7"), name)
    assert "another database cluster" in by_object(check(made))["change log of group apart"].consequence
    log.remove()
    database.rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    try:
        assert "no change log" in by_object(check(made))[f"slot {name}"].consequence
    finally:
        database.rows("SELECT pg_drop_replication_slot(%s)", [name])


def test_an_override_that_cannot_carry_a_column_blocks(database: Database, config: ConfigFactory) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    found = by_object(check(config(tables={"a": {"types": {"id": "date"}}, "b": {}})))
    assert found["tables"].blocks
    assert found["[tables.'public.b']"].level is Severity.WARNS


def test_a_table_in_two_groups_blocks(database: Database, config: ConfigFactory) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    found = by_object(check(config(groups=[{"name": "x"}, {"name": "y", "tables": ["public.a"]}])))
    assert found["public.a"].blocks


def test_the_command_prints_the_contract_and_exits_1_if_anything_blocks(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    file = tmp_path / "shop.toml"
    file.write_text(f'[source]\ndsn = "{database.dsn}"\n')
    assert main(["-c", str(file), "check", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert {frozenset(finding) for finding in answer["findings"]} == {
        frozenset({"object", "level", "consequence", "fix", "sql"})
    }
    file.write_text(f'[source]\ndsn = "{database.dsn}"\n[[groups]]\nname = "a"\ntables = ["public.gone"]\n')
    assert main(["-c", str(file), "check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
