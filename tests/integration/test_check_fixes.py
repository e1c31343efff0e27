"""The fixes of `check` are executed as printed, SQL in psql; afterwards check has no findings."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ConfigFactory
from remedies import fixes, toml
from servers import Database, fresh_database, running_server, server_major
from wal2lake.cli import main
from wal2lake.config import Config
from wal2lake.demo.server import find_binaries
from wal2lake.preflight.collect import Finding, Severity, check
from wal2lake.quoting import identifier
from wal2lake.schema import TableId
from wal2lake.source.publishing.slot import slot_name
from wal2lake.state import GroupRecord, TableRecord
from wal2lake.state.lifecycle import GroupState, TableState
from wal2lake.state.postgres import PostgresStateStore

AWKWARD = 'it\'s "a" $$.b\\ c'


def paste(database: Database, statements: str) -> None:
    """What psql does with a line that is pasted into it."""
    command = [str(find_binaries() / "psql"), "-X", "-v", "ON_ERROR_STOP=1", "-d", database.dsn]
    done = subprocess.run(command, input=statements + "\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{statements}: {done.stderr}"


def told(config: Config) -> dict[str, Finding]:
    """What is more than a note, by object."""
    return {finding.object: finding for finding in check(config) if finding.level is not Severity.NOTES}


def fixed(database: Database, config: Config, *objects: str) -> dict[str, Finding]:
    """Do what check says of objects, and of no others; each fix is SQL of its own."""
    found = told(config)
    assert set(found) == set(objects), found
    for finding in found.values():
        assert finding.sql, finding
        paste(database, finding.fix)
    assert told(config) == {}
    return found


@pytest.fixture
def poor(database: Database) -> Iterator[str]:
    """An ordinary role that may do nothing; its name needs quotes."""
    name = f'{database.name} it\'s "poor"'
    role, boss = identifier(name), identifier(f"{name} boss")
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; CREATE ROLE {boss}")
    yield name
    database.execute(f"REASSIGN OWNED BY {role}, {boss} TO CURRENT_USER; DROP OWNED BY {role}, {boss}")
    database.execute(f"DROP ROLE {role}, {boss}")


def as_role(database: Database, role: str) -> dict[str, str]:
    """The section [source] of a role."""
    host, port = "127.0.0.1", database.server.port
    quoted = role.replace("\\", "\\\\").replace("'", "\\'")
    return {"dsn": f"host={host} port={port} dbname={database.name} user='{quoted}' password=x"}


@fixes(
    "read_grants: GRANT USAGE ON SCHEMA … TO …;",
    "read_grants: GRANT SELECT ON … TO …;",
    "owner_remedy: GRANT … TO …;",
    "owner_remedy: ALTER TABLE … OWNER TO …;",
    "judge_role: ALTER ROLE … REPLICATION;",
    "judge_role: GRANT CREATE ON DATABASE … TO …;",
    "judge_heap: ALTER ROLE … BYPASSRLS;",
)
def test_privileges_that_a_role_lacks(database: Database, config: ConfigFactory, poor: str) -> None:
    name, boss = identifier(AWKWARD), identifier(f"{poor} boss")
    database.execute(
        f"""
        CREATE SCHEMA {name}; CREATE TABLE {name}.{name} (id int PRIMARY KEY); ALTER TABLE {name}.{name} OWNER TO {boss};
        CREATE TABLE supers (id int PRIMARY KEY);
        ALTER TABLE supers ENABLE ROW LEVEL SECURITY; ALTER TABLE supers FORCE ROW LEVEL SECURITY;
        """
    )
    made = config(source=as_role(database, poor), groups=[{"name": "default", "tables": ["*.*"]}])
    said: list[str] = []
    for _ in range(4):
        # What a role can't read hides what else it lacks.
        findings = [finding for finding in check(made) if finding.blocks]
        said += [finding.fix for finding in findings]
        for finding in findings:
            assert finding.sql, finding
            paste(database, finding.fix)
    assert told(made) == {}
    for words in ("USAGE", "SELECT", f"GRANT {boss}", "OWNER TO", " REPLICATION", "CREATE ON DATABASE", "BYPASSRLS"):
        assert any(words in fix for fix in said), words


@fixes("owner_remedy: GRANT … TO … WITH INHERIT TRUE;", "owner_remedy: GRANT … TO …; ALTER ROLE … INHERIT;")
def test_a_role_that_does_not_inherit_the_rights_of_an_owner(
    database: Database, config: ConfigFactory, poor: str
) -> None:
    """The option of GRANT came with 16; before it, it is the role's."""
    role, boss = identifier(poor), identifier(f"{poor} boss")
    database.execute(
        f'ALTER ROLE {role} NOINHERIT REPLICATION; GRANT CREATE ON DATABASE "{database.name}" TO {role};'
        f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {boss}; GRANT SELECT ON t TO {role}"
    )
    found = fixed(database, config(source=as_role(database, poor)), "public.t")
    assert ("WITH INHERIT TRUE" in found["public.t"].fix) == (server_major() >= 16)


@fixes("judge_role: GRANT rds_replication TO …;")
def test_a_server_that_grants_replication_by_a_role(database: Database, config: ConfigFactory, poor: str) -> None:
    database.execute(
        f'GRANT CREATE ON DATABASE "{database.name}" TO {identifier(poor)}; CREATE ROLE rds_replication;'
        f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {identifier(poor)}"
    )
    try:
        wal = [{"name": "default", "capture": "wal"}]
        fixed(database, config(source=as_role(database, poor), groups=wal), f"role {poor}")
    finally:
        database.execute("DROP ROLE rds_replication")


@fixes("judge_role: ALTER … … OWNER TO …;")
def test_what_wal2lake_has_made_and_another_role_owns(database: Database, config: ConfigFactory, poor: str) -> None:
    store = PostgresStateStore(database.dsn)
    store.create()
    store.close()
    database.execute(
        f"CREATE PUBLICATION wal2lake_default; ALTER ROLE {identifier(poor)} REPLICATION;"
        f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {identifier(poor)}"
    )
    made = config(source=as_role(database, poor))
    found = [finding for finding in check(made) if finding.blocks]
    assert {"schema wal2lake", "publication wal2lake_default"} < {finding.object for finding in found}
    for finding in found:
        assert "OWNER TO" in finding.fix
        paste(database, finding.fix)
        # Who owns a publication has to be allowed to make one.
        database.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO {identifier(poor)}')
    assert told(made) == {}


@fixes("judge_heap: ALTER TABLE … SET LOGGED;")
def test_a_partition_that_is_not_in_the_wal(database: Database, config: ConfigFactory) -> None:
    name = identifier(AWKWARD)
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        f"CREATE UNLOGGED TABLE {name} PARTITION OF t FOR VALUES FROM (0) TO (10)"
    )
    found = told(config())
    (finding,) = found.values()
    assert "unlogged" in finding.consequence
    paste(database, finding.fix)
    assert told(config()) == {}


LEAVES = "CREATE TABLE {} PARTITION OF t FOR VALUES IN ({});"


@fixes("fix: ALTER TABLE … REPLICA IDENTITY …;", "_of_leaves: DO …;")
@pytest.mark.parametrize("many", [False, True])
def test_tables_whose_updates_postgresql_would_refuse(database: Database, config: ConfigFactory, many: bool) -> None:
    leaves = "".join(LEAVES.format(identifier(f"{AWKWARD} {i}"), i) for i in range(5 if many else 2))
    name = identifier(AWKWARD)
    database.execute(
        f"CREATE TABLE t (id int) PARTITION BY LIST (id); {leaves} ALTER TABLE t RENAME TO {name};"
        "CREATE TABLE nothing (id int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING"
    )
    table = str(TableId("public", AWKWARD))
    found = fixed(database, config(groups=[{"name": "default", "capture": "wal"}]), table, "public.nothing")
    assert found[table].fix.startswith("DO " if many else "ALTER TABLE")
    assert "$body1$" in found[table].fix or not many


@fixes("full_rows: ALTER TABLE … REPLICA IDENTITY FULL;")
def test_partitions_whose_keys_do_not_identify_rows_of_the_whole_table(
    database: Database, config: ConfigFactory
) -> None:
    made = [(f'"leaf {i}"', i) for i in range(2)]
    leaves = "".join(LEAVES.format(leaf, i) + f"ALTER TABLE {leaf} ADD PRIMARY KEY (id);" for leaf, i in made)
    database.execute(f"CREATE TABLE t (tenant int, id int) PARTITION BY LIST (tenant); {leaves}")
    fixed(database, config(), "public.t")


NARROWED = pytest.mark.skipif(server_major() < 15, reason="row filters and column lists came with 15")


@NARROWED
@fixes(
    "judge_columns: ALTER TABLE … REPLICA IDENTITY DEFAULT;",
    "judge_filter: ALTER TABLE … REPLICA IDENTITY FULL;",
    "index_fix: CREATE UNIQUE INDEX … ON … (…); ALTER TABLE … REPLICA IDENTITY USING INDEX …;",
)
def test_filters_that_do_not_fit_the_replica_identity(database: Database, config: ConfigFactory) -> None:
    name = identifier(AWKWARD)
    database.execute(
        f"CREATE TABLE listed (id int PRIMARY KEY, v text); ALTER TABLE listed REPLICA IDENTITY FULL;"
        f"CREATE TABLE filtered (id int PRIMARY KEY, v text);"
        f"CREATE TABLE {name} (id int PRIMARY KEY, {name} int NOT NULL, w text)"
    )
    both = str(TableId("public", AWKWARD))
    settings: dict[str, Any] = {
        "public.listed": {"columns": ["id", "v"]},
        "public.filtered": {"where": "v <> 'x'"},
        both: {"columns": ["id", AWKWARD], "where": f"{name} > 3"},
    }
    found = fixed(database, config(tables=settings), *settings)
    assert "CREATE UNIQUE INDEX" in found[both].fix


@fixes("judge_slot: SELECT pg_drop_replication_slot(…);")
@pytest.mark.parametrize("plugin", ["test_decoding", "pgoutput"])
def test_a_slot_that_is_not_ours(database: Database, config: ConfigFactory, plugin: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name = slot_name("default", database.name)
    database.rows("SELECT pg_create_logical_replication_slot(%s, %s)", [name, plugin])
    (finding,) = told(config()).values()
    paste(database, finding.fix)
    assert told(config()) == {}


@fixes(
    "judge_groups: wal2lake groups drop …",
    "judge_groups: wal2lake groups enable …",
    "judge_removed: wal2lake tables add …",
)
def test_what_commands_have_stopped(database: Database, config: ConfigFactory, tmp_path: Path) -> None:
    name = identifier(AWKWARD)
    database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY)")
    made = config()
    file = tmp_path / "wal2lake.toml"
    sections = {
        "source": {"dsn": database.dsn},
        "lake": {"path": str(tmp_path / "lake")},
        "groups": [{"name": "default"}],
    }
    file.write_text(toml(sections), "utf-8")

    def run(command: str) -> None:
        program, *arguments = shlex.split(command)
        assert program == "wal2lake" and main(["-c", str(file), *arguments]) == 0, command

    run("wal2lake groups disable default")
    id = TableId("public", AWKWARD)
    table = str(id)
    store, oid = PostgresStateStore(database.dsn), database.value("SELECT %s::regclass::oid::int8", [name])
    store.save_tables([TableRecord("default", oid, id, TableState.STREAMING)])
    run(f"wal2lake tables remove {shlex.quote(table)}")
    store.save_group(GroupRecord("former", GroupState.STOPPED, "a_slot", "wal"))
    store.close()
    found = {finding.object: finding for finding in check(made) if finding.fix.startswith("wal2lake ")}
    assert set(found) >= {"group default", "group former", table}
    for each in ("group default", "group former", table):
        run(found[each].fix)
    assert not {"group default", "group former", table} & {finding.object for finding in check(made)}


@fixes(
    "judge_server: ALTER SYSTEM SET wal_level = 'logical'; -- then restart PostgreSQL",
    "judge_room: ALTER SYSTEM SET … = …; -- then restart PostgreSQL",
    "_keep_size: ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();",
)
def test_a_server_that_is_not_set_up_for_logical_replication(tmp_path: Path) -> None:
    given = ("wal_level", "max_wal_senders", "max_replication_slots")
    with running_server() as server:
        server.stop()
        # Settings on its command line would win over ALTER SYSTEM.
        server._settings = {name: value for name, value in server._settings.items() if name not in given}
        with (server.data / "postgresql.conf").open("a") as file:
            file.write(
                "wal_level = replica\nmax_wal_senders = 1\nmax_replication_slots = 1\nmax_slot_wal_keep_size = 64MB\n"
            )
        server.start()
        try:
            with fresh_database(server) as database:
                database.execute("CREATE TABLE t (id int PRIMARY KEY)")

                def config() -> Config:
                    wal = [{"name": "default", "capture": "wal"}]
                    return Config(source={"dsn": database.dsn}, lake={"path": str(tmp_path / "lake")}, groups=wal)

                found = told(config())
                assert set(found) == {"wal_level", "max_wal_senders", "max_replication_slots", "max_slot_wal_keep_size"}
                for finding in found.values():
                    paste(database, finding.fix)
                database.close()
                server.stop()
                server.start()
                assert told(config()) == {}
        finally:
            server.stop()
