"""A mirror runs with the role that `init --role-sql` makes, and `check` names each grant that is taken from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from mirroring import PATIENCE, Mirrored
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from remedies import fixes, toml
from servers import Database, fresh_database, tls_server
from waiting import wait_until
from wal2lake.cli import main
from wal2lake.config import Config
from wal2lake.demo.server import EmbeddedServer, find_binaries
from wal2lake.preflight import Finding, Severity, check
from wal2lake.quoting import identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("plain", "whole", "events")
GROUP = "g"


def paste(database: Database, statements: str, user: str | None = None) -> None:
    """What psql does with a script."""
    binaries = Path(os.environ.get("WAL2LAKE_TEST_PG_BIN") or find_binaries())
    psql = binaries / "psql" if (binaries / "psql").exists() else find_binaries() / "psql"
    dsn = make_conninfo(database.dsn, **({} if user is None else {"user": user, "password": "x"}))
    command = [str(psql), "-X", "-v", "ON_ERROR_STOP=1", "-d", dsn]
    done = subprocess.run(command, input=statements, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{statements}: {done.stderr}"


@pytest.fixture
def shop(database: Database) -> Iterator[Database]:
    """Tables of an application, which owns them, on a server with TLS where it is built with it."""
    with ExitStack() as stack:
        if database.value("SHOW ssl_library"):
            database = stack.enter_context(fresh_database(stack.enter_context(tls_server())))
        app, leaves = identifier(f"{database.name} app"), '"S leaves"'
        database.execute(
            f"""
            CREATE ROLE {app} LOGIN CREATEROLE REPLICATION PASSWORD 'x'; REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT CREATE, USAGE ON SCHEMA public TO {app} WITH GRANT OPTION;
            REVOKE CONNECT, TEMP ON DATABASE {database.name} FROM PUBLIC;
            GRANT CREATE, CONNECT, TEMP ON DATABASE {database.name} TO {app} WITH GRANT OPTION;
            SET ROLE {app};
            CREATE SCHEMA {leaves};
            CREATE TABLE public.plain (id int PRIMARY KEY, v text); INSERT INTO public.plain VALUES (1, 'a'), (2, 'b');
            CREATE TABLE public.whole (v text); ALTER TABLE public.whole REPLICA IDENTITY FULL;
            CREATE TABLE public.events (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
            CREATE TABLE {leaves}.low PARTITION OF public.events FOR VALUES FROM (0) TO (100);
            INSERT INTO public.whole VALUES ('w'), ('w'); INSERT INTO public.events VALUES (1, 'e');
            CREATE TABLE public.not_ours (id int PRIMARY KEY); CREATE TABLE public.keyless (id int);
            RESET ROLE
            """
        )
        yield database
        role = identifier(f"{database.name} mirror")
        database.execute("DROP SCHEMA IF EXISTS wal2lake CASCADE")
        # What the application has granted goes with its own privileges.
        for order in ("DROP OWNED BY {} CASCADE", "DROP ROLE {}"):
            for each in (app, role):
                exists = f"SELECT FROM pg_roles WHERE rolname = $r${each[1:-1]}$r$"
                database.execute(f"DO $$ BEGIN IF EXISTS ({exists}) THEN {order.format(each)}; END IF; END $$")


@pytest.fixture
def state(server: EmbeddedServer) -> Iterator[Database]:
    """Another database, for the state store."""
    with fresh_database(server) as database:
        yield database


def sections(shop: Database, capture: str, dsn: dict[str, Any] | None = None) -> dict[str, Any]:
    """The configuration that the script was made for."""
    facts = {
        **conninfo_to_dict(shop.dsn), "user": f"{shop.name} mirror", "password": "x",
        **({"sslmode": "require"} if shop.value("SHOW ssl") == "on" else {}), **(dsn or {}),
    }  # fmt: skip
    group = {
        "name": GROUP, "flush_interval": 0.1, "capture": capture, "tables": ['public.*'],
        "exclude": ['public.not_ours'], **({} if capture == "trigger" else {"publication": "for the lake"}),
    }  # fmt: skip
    return {"source": {"dsn": make_conninfo(**facts)}, "groups": [group]}


def script(tmp_path: Path, capsys: pytest.CaptureFixture[str], made: dict[str, Any], *options: str) -> str:
    """What the command prints."""
    file = tmp_path / "wal2lake.toml"
    file.write_text(toml({**made, "lake": {"path": str(tmp_path / "lake")}}), "utf-8")
    capsys.readouterr()
    assert main(["-c", str(file), "init", "--role-sql", *options]) == 0
    return capsys.readouterr().out


def told(config: Config) -> list[Finding]:
    return [finding for finding in check(config) if finding.level is not Severity.NOTES]


def write(shop: Database, number: int) -> None:
    app = identifier(f"{shop.name} app")
    shop.execute(
        f"SET ROLE {app}; INSERT INTO public.plain VALUES ({number}, 'n'); UPDATE public.plain SET v = v || {number};"
        f"INSERT INTO whole VALUES ('{number}'); UPDATE whole SET v = 'x' WHERE v = '{number - 1}';"
        f"INSERT INTO public.events VALUES ({number}, 'n'); DELETE FROM public.events WHERE id = {number - 2};"
        "RESET ROLE; SET session_replication_role = replica;"
        f"INSERT INTO public.plain VALUES ({number + 1}, 'replicated'); RESET session_replication_role"
    )


@pytest.mark.parametrize(
    ("capture", "elsewhere"),
    [("wal", False), ("poll", False), ("wal", True), ("trigger", False), ("trigger", True)],
)
def test_the_role_of_the_script_suffices(
    shop: Database, capture: str, elsewhere: bool, tmp_path: Path, spark: SparkSession, state: Database,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    made = sections(shop, capture)
    if elsewhere:
        made["state"] = {"dsn": state.dsn}
    text = script(tmp_path, capsys, made)
    for _ in range(2):  # it can be run again
        paste(shop, text)
    role = identifier(f"{shop.name} mirror")
    shop.execute(f"ALTER ROLE {role} PASSWORD 'x'")
    mirrored = Mirrored(shop, tmp_path / "lake", spark, **made)
    assert told(mirrored.config) == []
    mirrored.catches_up(*TABLES)
    write(shop, 10)
    mirrored.catches_up(*TABLES)
    for number in (20, 30):  # a restart lies between them
        with mirrored.running():
            mirrored.is_streaming(*TABLES)
            write(shop, number)
            app = identifier(f"{shop.name} app")
            shop.execute(
                f"SET ROLE {app}; CREATE TABLE public.part_{number} PARTITION OF public.events "
                f"FOR VALUES FROM ({number * 100}) TO ({number * 100 + 9});"
                f"INSERT INTO events VALUES ({number * 100}, 'new'); RESET ROLE"
            )
            mirrored.becomes_equal(*TABLES)
    assert told(mirrored.config) == []
    triggers = capture == "trigger"
    expected = [("wal2lake",)] * (not elsewhere) + [("wal2lake_changes",)] * triggers
    assert owned(shop, role) == expected
    assert shop.value("SELECT rolreplication FROM pg_roles WHERE oid = %s::regrole", [role]) is not triggers
    mirrored.command("teardown", "--yes")
    assert owned(shop, role) == []
    ours = "SELECT tgname::text FROM pg_trigger WHERE tgname LIKE 'wal2lake%' UNION SELECT proname::text FROM pg_proc WHERE proname = 'enable_always'"
    assert shop.rows(ours) == []


def owned(shop: Database, role: str) -> list[tuple[Any, ...]]:
    """The schemas in which a role owns something, or which it owns."""
    return shop.rows(
        "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relowner = %s::regrole AND n.nspname <> 'pg_toast'"
        " UNION SELECT nspname::text FROM pg_namespace WHERE nspowner = %s::regrole ORDER BY 1",
        [role, role],
    )


GRANTS = {
    "connect": ("REVOKE CONNECT ON DATABASE {database} FROM {role}", "GRANT CONNECT ON DATABASE"),
    "login": ("ALTER ROLE {role} NOLOGIN", "ALTER ROLE {role} LOGIN"),
    "replication": ("ALTER ROLE {role} NOREPLICATION", "ALTER ROLE {role} REPLICATION"),
    "usage": ('REVOKE USAGE ON SCHEMA "public" FROM {role}', 'GRANT USAGE ON SCHEMA "public" TO {role}'),
    "usage-of-leaves": ('REVOKE USAGE ON SCHEMA "S leaves" FROM {role}', 'GRANT USAGE ON SCHEMA "S leaves" TO {role}'),
    "select": ("REVOKE SELECT ON public.plain FROM {role}", 'GRANT SELECT ON "public"."plain" TO {role}'),
    "select-root": ("REVOKE SELECT ON public.events FROM {role}", 'GRANT SELECT ON "public"."events" TO {role}'),
    "select-leaf": ('REVOKE SELECT ON "S leaves".low FROM {role}', 'GRANT SELECT ON "S leaves"."low" TO {role}'),
    "partitions-to-come": (
        'ALTER DEFAULT PRIVILEGES FOR ROLE {app} IN SCHEMA "public" REVOKE SELECT ON TABLES FROM {role}',
        'ALTER DEFAULT PRIVILEGES FOR ROLE {app} IN SCHEMA "public" GRANT SELECT ON TABLES TO {role}',
    ),
    "schema": ("DROP SCHEMA wal2lake", "CREATE SCHEMA wal2lake AUTHORIZATION {role}"),
    "owner": ("ALTER SCHEMA wal2lake OWNER TO {app}", 'ALTER SCHEMA "wal2lake" OWNER TO {role}'),
    "publication": ('ALTER PUBLICATION "for the lake" DROP TABLE public.plain', "ALTER PUBLICATION"),
}


@fixes(
    "judge_role: CREATE SCHEMA wal2lake AUTHORIZATION …;",
    "judge_partitions_to_come: ALTER DEFAULT PRIVILEGES FOR ROLE … IN SCHEMA … GRANT … ON TABLES TO …;",
)
def test_check_names_each_grant_that_is_revoked(
    shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sections(shop, "wal")
    paste(shop, script(tmp_path, capsys, made))
    names = {
        "role": identifier(f"{shop.name} mirror"), "app": identifier(f"{shop.name} app"), "database": shop.name,
    }  # fmt: skip
    shop.execute(f"ALTER ROLE {names['role']} PASSWORD 'x'")
    made["groups"][0]["tables"] = ["public.plain", "public.whole", "public.events"]
    config = Config(**made, lake={"path": str(tmp_path / "lake")})
    assert told(config) == []
    granted = tree_of_grants(shop, names["role"])
    for grant, (revoke, fix) in GRANTS.items():
        shop.execute(revoke.format(**names))
        found = told(config)
        assert found, grant
        said = [finding.fix for finding in found]
        assert any(text.startswith(fix.format(**names)) for text in said), (grant, said)
        for text in dict.fromkeys(said):
            paste(shop, text if text.endswith(";") else f"{text};")
        assert told(config) == [], grant
    assert tree_of_grants(shop, names["role"]) == granted


def enabling(shop: Database) -> str:
    """How the function of the DBA runs, and for whom."""
    facts = "proconfig, prosecdef, pg_get_userbyid(proowner)::text, proacl::text"
    return str(shop.rows(f"SELECT {facts} FROM pg_proc WHERE proname = 'enable_always'"))


OF_TRIGGERS = {
    **{name: GRANTS[name] for name in (
        "connect", "login", "usage", "usage-of-leaves", "select", "select-root", "select-leaf", "partitions-to-come",
        "schema", "owner",
    )},
    "trigger": ("REVOKE TRIGGER ON public.plain FROM {role}", 'GRANT TRIGGER ON "public"."plain" TO {role}'),
    "trigger-root": ("REVOKE TRIGGER ON public.events FROM {role}", 'GRANT TRIGGER ON "public"."events" TO {role}'),
    "trigger-leaf": ('REVOKE TRIGGER ON "S leaves".low FROM {role}', 'GRANT TRIGGER ON "S leaves"."low" TO {role}'),
    "triggers-to-come": (
        'ALTER DEFAULT PRIVILEGES FOR ROLE {app} IN SCHEMA "public" REVOKE TRIGGER ON TABLES FROM {role}',
        'ALTER DEFAULT PRIVILEGES FOR ROLE {app} IN SCHEMA "public" GRANT TRIGGER ON TABLES TO {role}',
    ),
    "schema-of-buffers": (
        "DROP SCHEMA wal2lake_changes CASCADE", "CREATE SCHEMA wal2lake_changes AUTHORIZATION {role}",
    ),
    "owner-of-buffers": (
        "ALTER SCHEMA wal2lake_changes OWNER TO {app}", "ALTER SCHEMA wal2lake_changes OWNER TO {role}"
    ),
    "enabling": (
        "DROP FUNCTION wal2lake_changes.enable_always(oid)",
        "DROP FUNCTION IF EXISTS wal2lake_changes.enable_always(oid); CREATE FUNCTION",
    ),
    "enabling-of-another": (
        "ALTER FUNCTION wal2lake_changes.enable_always(oid) OWNER TO {role}",
        "DROP FUNCTION IF EXISTS wal2lake_changes.enable_always(oid); CREATE FUNCTION",
    ),
    "execute": (
        "REVOKE EXECUTE ON FUNCTION wal2lake_changes.enable_always(oid) FROM {role}",
        "GRANT EXECUTE ON FUNCTION wal2lake_changes.enable_always(oid) TO {role}",
    ),
}  # fmt: skip


@fixes(
    "create_place: CREATE SCHEMA … AUTHORIZATION …;",
    "create_enabling: DROP FUNCTION IF EXISTS …;",
    "create_enabling: REVOKE ALL ON FUNCTION … FROM PUBLIC;",
    "lacking_place: ALTER SCHEMA … OWNER TO …;",
    "lacking: GRANT USAGE ON SCHEMA … TO …;",
    "lacking: GRANT TRIGGER ON … TO …;",
    "may_enable: GRANT EXECUTE ON FUNCTION … TO …;",
)
def test_check_names_each_grant_that_triggers_need(
    shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sections(shop, "trigger")
    paste(shop, script(tmp_path, capsys, made))
    names = {
        "role": identifier(f"{shop.name} mirror"), "app": identifier(f"{shop.name} app"), "database": shop.name,
    }  # fmt: skip
    shop.execute(f"ALTER ROLE {names['role']} PASSWORD 'x'")
    config = Config(**made, lake={"path": str(tmp_path / "lake")})
    assert told(config) == []
    granted, function = tree_of_grants(shop, names["role"]), enabling(shop)
    for grant, (revoke, fix) in OF_TRIGGERS.items():
        shop.execute(revoke.format(**names))
        seen: list[str] = []
        while found := told(config):  # without the schema, the function is gone, too
            seen += (said := [finding.fix for finding in found])
            assert len(seen) < 20, (grant, seen)
            for text in dict.fromkeys(said):
                paste(shop, text if text.endswith(";") else f"{text};")
        assert any(text.startswith(fix.format(**names)) for text in seen), (grant, seen)
    assert tree_of_grants(shop, names["role"]) == granted
    assert enabling(shop) == function


@fixes("judge_publishing: CREATE PUBLICATION … FOR TABLE …;")
def test_the_script_of_check_makes_a_publication_and_no_member_of_the_owner(
    shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    role, app = identifier(f"{shop.name} mirror"), identifier(f"{shop.name} app")
    shop.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT CONNECT ON DATABASE {shop.name} TO {role}")
    made = {**sections(shop, "wal"), "lake": {"path": str(tmp_path / "lake")}}
    group = made["groups"][0]
    del group["publication"]
    group["exclude"] += ["public.keyless"]
    file = tmp_path / "wal2lake.toml"
    file.write_text(toml(made), "utf-8")

    def printed() -> str:
        capsys.readouterr()
        assert main(["-c", str(file), "check", "--sql"]) == 1
        return capsys.readouterr().out

    for _ in range(2):  # what a role can't read hides what else it lacks
        text = printed()
        paste(shop, text)
    assert not shop.value("SELECT pg_has_role(%s::regrole, %s::regrole, 'MEMBER')", [role, app])
    assert not shop.value("SELECT has_database_privilege(%s::regrole, current_database(), 'CREATE')", [role])
    group["publication"] = f"wal2lake_{GROUP}_tables"
    assert told(Config(**made)) == []


def tree_of_grants(shop: Database, role: str) -> list[tuple[Any, ...]]:
    """All that a role has: its attributes, and each privilege."""
    return shop.rows(
        "SELECT 'table', c.oid::regclass::text, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE a.grantee = %(r)s::regrole UNION ALL "
        "SELECT 'schema', n.nspname::text, a.privilege_type FROM pg_namespace n, aclexplode(n.nspacl) a"
        " WHERE a.grantee = %(r)s::regrole AND n.nspname <> 'wal2lake' UNION ALL "
        "SELECT 'database', d.datname::text, a.privilege_type FROM pg_database d, aclexplode(d.datacl) a"
        " WHERE a.grantee = %(r)s::regrole UNION ALL "
        "SELECT 'default', d.defaclnamespace::regnamespace::text, a.privilege_type"
        " FROM pg_default_acl d, aclexplode(d.defaclacl) a WHERE a.grantee = %(r)s::regrole UNION ALL "
        "SELECT 'role', rolreplication::text, rolcanlogin::text FROM pg_roles WHERE oid = %(r)s::regrole ORDER BY 1, 2, 3",
        {"r": role},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("service", ["rds", "cloud-sql", "azure", "supabase"])
def test_the_script_of_a_managed_service_needs_no_superuser(
    shop: Database, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sections(shop, "wal")
    text = script(tmp_path, capsys, made, "--service", service)
    app, role = identifier(f"{shop.name} app"), identifier(f"{shop.name} mirror")
    if service == "rds":
        shop.execute(f"CREATE ROLE rds_replication; GRANT rds_replication TO {app} WITH ADMIN OPTION")
    elif shop.connect().info.server_version < 160000:
        # PostgreSQL before 16 lets superusers alone give REPLICATION; the services have changed that.
        shop.execute(f"ALTER ROLE {app} SUPERUSER")
    try:
        paste(shop, text, user=f"{shop.name} app")
        shop.execute(f"ALTER ROLE {role} PASSWORD 'x'")
        assert told(Config(**made, lake={"path": str(tmp_path / "lake")})) == [] or service == "rds"
        member = shop.value("SELECT pg_has_role(%s::regrole, %s::regrole, 'MEMBER')", [app, role])
        assert not member or service != "rds" or shop.connect().info.server_version >= 160000
    finally:
        if service == "rds":
            shop.execute("DROP OWNED BY rds_replication; DROP ROLE rds_replication")


@pytest.fixture
def granted(shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The configuration of a role that may install triggers on tables of the application."""
    made = sections(shop, "trigger")
    paste(shop, script(tmp_path, capsys, made))
    shop.execute(f"ALTER ROLE {identifier(f'{shop.name} mirror')} PASSWORD 'x'")
    return made


MAKES = "CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql {rights} AS $$ BEGIN RETURN NULL; END $$;"
TRIGGER = "CREATE TRIGGER {name} AFTER INSERT ON {table} FOR EACH {each} {when} EXECUTE FUNCTION {function}()"
OURS = {
    "name": "wal2lake_x", "table": "public.plain", "each": "STATEMENT", "function": "wal2lake_changes.f",
    "rights": "SECURITY DEFINER", "when": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "enabled"),
    [
        ({}, True),
        ({"rights": "SECURITY INVOKER"}, False),
        ({"name": "theirs"}, False),
        ({"each": "ROW"}, False),
        ({"when": "WHEN (pg_is_in_recovery())"}, False),
        ({"function": "wal2lake.f"}, False),
    ],
    ids=str,
)
def test_the_function_of_the_dba_enables_triggers_that_run_as_the_role_and_no_others(
    shop: Database, granted: dict[str, Any], changed: dict[str, str], enabled: bool
) -> None:
    facts = {**OURS, **changed}
    call = "SELECT wal2lake_changes.enable_always('public.plain'::regclass)"
    paste(shop, (MAKES + TRIGGER).format(**facts), f"{shop.name} mirror")
    # What is found by a search path is not what the function means.
    shadows = "CREATE FUNCTION pg_temp.starts_with(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
    shop.execute(f"GRANT TEMP ON DATABASE {shop.name} TO {identifier(f'{shop.name} mirror')}")
    paste(shop, f"{shadows} SET search_path = pg_temp, wal2lake; {call}", f"{shop.name} mirror")
    assert (shop.value("SELECT tgenabled::text FROM pg_trigger WHERE tgname = %s", [facts["name"]]) == "A") is enabled
    with pytest.raises(AssertionError, match="permission denied"):
        paste(shop, call, f"{shop.name} app")


def test_the_function_of_the_dba_leaves_tables_alone_on_which_the_role_has_lost_the_privilege(
    shop: Database, granted: dict[str, Any]
) -> None:
    role = f"{shop.name} mirror"
    paste(shop, (MAKES + TRIGGER).format(**OURS), role)
    shop.execute(f"REVOKE TRIGGER ON public.plain FROM {identifier(role)}")
    paste(shop, "SELECT wal2lake_changes.enable_always('public.plain'::regclass)", role)
    assert shop.value("SELECT tgenabled::text FROM pg_trigger WHERE tgname = 'wal2lake_x'") == "O"


def test_a_run_without_a_privilege_names_what_grants_it(
    shop: Database, granted: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    role = identifier(f"{shop.name} mirror")
    shop.execute(f'REVOKE TRIGGER ON "S leaves".low FROM {role}; DROP FUNCTION wal2lake_changes.enable_always(oid)')
    mirrored = Mirrored(shop, tmp_path / "lake", spark, **granted)
    result = mirrored.once()
    missed = {table.name: table for table in result.missed}
    assert {"public.plain", "public.events"} <= set(missed)
    assert 'GRANT TRIGGER ON "S leaves"."low"' in str(missed["public.events"].remedy)
    paste(shop, str(missed["public.events"].remedy))
    mirrored.catches_up(*TABLES)


def test_tables_of_others_that_are_removed_or_whose_triggers_are_outdated(
    shop: Database, granted: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    mirrored = Mirrored(shop, tmp_path / "lake", spark, **granted)
    mirrored.catches_up(*TABLES)
    function = shop.value("SELECT tgfoid::regproc::text FROM pg_trigger WHERE tgrelid = 'plain'::regclass LIMIT 1")
    older = "CREATE TRIGGER wal2lake_insert_00000000 AFTER INSERT ON public.plain REFERENCING NEW TABLE AS wal2lake_new"
    paste(shop, f"{older} EXECUTE FUNCTION {function}()", f"{shop.name} mirror")
    app = identifier(f"{shop.name} app")
    shop.execute(f"SET ROLE {app}; ALTER TABLE public.whole ADD COLUMN w int; RESET ROLE")
    mirrored.catches_up(*TABLES)
    of_plain = "SELECT count(*), bool_and(tgenabled = 'A') FROM pg_trigger WHERE tgrelid = 'plain'::regclass"
    assert shop.rows(of_plain) == [(4, True)]
    write(shop, 40)
    mirrored.catches_up(*TABLES)
    mirrored.command("tables", "remove", "public.plain", "public.events")
    write(shop, 50)
    mirrored.catches_up("whole")
    left = shop.rows("SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE 'wal2lake%' ORDER BY 1")
    assert left == [("keyless",), ("whole",)]


def test_a_table_of_others_gets_triggers_beside_a_slot_when_the_role_has_the_rights_of_its_owner(
    shop: Database, granted: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    role = identifier(f"{shop.name} mirror")
    shop.execute(f"ALTER ROLE {role} REPLICATION; GRANT CREATE ON DATABASE {shop.name} TO {role}")
    group = {**granted["groups"][0], "capture": "wal", "tables": ["public.keyless"], "exclude": []}
    tables = {"public.keyless": {"capture": "trigger"}}
    mirrored = Mirrored(shop, tmp_path / "lake", spark, **{**granted, "groups": [group], "tables": tables})
    blocking = [finding for finding in told(mirrored.config) if finding.object == "public.keyless"]
    assert "can't be captured by triggers: the role does not own it" in {finding.consequence for finding in blocking}
    (missed,) = mirrored.once().missed
    assert "only the owner of a table" in str(missed.error)
    of_keyless = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'keyless'::regclass"
    assert shop.value(of_keyless) == 0
    paste(shop, str(missed.remedy))
    shop.execute("INSERT INTO keyless VALUES (1), (1)")
    mirrored.catches_up("keyless")
    assert shop.value(of_keyless) == 4
    shop.execute("DELETE FROM keyless; INSERT INTO keyless VALUES (2), (2)")
    mirrored.catches_up("keyless")


def test_a_type_whose_schema_the_role_may_not_use_stops_nobody_who_writes(
    shop: Database, granted: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    app = identifier(f"{shop.name} app")
    shop.execute(
        f"CREATE SCHEMA hidden; GRANT USAGE ON SCHEMA hidden TO {app}; CREATE TYPE hidden.word;"
        "CREATE FUNCTION hidden.word_in(cstring) RETURNS hidden.word IMMUTABLE STRICT LANGUAGE internal AS 'textin';"
        "CREATE FUNCTION hidden.word_out(hidden.word) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'textout';"
        "CREATE TYPE hidden.word (INPUT = hidden.word_in, OUTPUT = hidden.word_out, LIKE = text);"
        f"CREATE TYPE hidden.pair AS (a int, b text); SET ROLE {app}; CREATE TABLE public.odd (id int PRIMARY KEY, v hidden.word,"
        " p hidden.pair); RESET ROLE"
    )
    granted["groups"][0]["tables"] = ["public.odd"]
    shop.execute(f"GRANT SELECT, TRIGGER ON public.odd TO {identifier(f'{shop.name} mirror')}")
    mirrored = Mirrored(shop, tmp_path / "lake", spark, **granted)
    mirrored.catches_up("odd")
    shop.execute(
        f"SET ROLE {app}; INSERT INTO odd VALUES (1, 'a', (1, 'b')), (2, NULL, (NULL, NULL)), (3, '', NULL), (4, 'x', NULL);"
        "UPDATE odd SET v = 'changed' WHERE id = 4; DELETE FROM odd WHERE id = 3; RESET ROLE"
    )
    mirrored.catches_up("odd")


def captured_by(shop: Database) -> tuple[int, int]:
    """Slots and triggers of a mirror."""
    counts = shop.rows(
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary)::int,"
        " (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'wal2lake%')::int"
    )
    return counts[0]


def test_a_role_that_owns_no_table_changes_from_triggers_to_the_wal_and_back(
    shop: Database, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, seconds in {"LOOK_SECONDS": 0.3, "AGAIN_SECONDS": 1.0, "CLEAR_SECONDS": 0.3}.items():
        monkeypatch.setattr(f"wal2lake.scheduling.lanes.{name}", seconds)
    made = sections(shop, "auto")
    paste(shop, script(tmp_path, capsys, made, "--capture", "auto"))
    role = identifier(f"{shop.name} mirror")
    shop.execute(f"ALTER ROLE {role} PASSWORD 'x' NOREPLICATION; REVOKE TRIGGER ON public.plain FROM {role}")
    mirrored = Mirrored(shop, tmp_path / "lake", spark, **made)
    said = [finding.fix for finding in check(mirrored.config) if "can't be captured by triggers" in finding.consequence]
    assert said == [f'GRANT TRIGGER ON "public"."plain" TO {role};']
    paste(shop, said[0])
    assert told(mirrored.config) == []
    with mirrored.running():
        mirrored.is_streaming(*TABLES)
        assert captured_by(shop) == (0, 16)
        write(shop, 10)
        mirrored.becomes_equal(*TABLES)
        shop.execute(f"ALTER ROLE {role} REPLICATION")
        wait_until(lambda: captured_by(shop) == (1, 0), PATIENCE, lambda: f"the WAL: {captured_by(shop)}")
        write(shop, 20)
        mirrored.becomes_equal(*TABLES)
        assert owned(shop, role) == [("wal2lake",), ("wal2lake_changes",)]
        shop.execute(f"ALTER ROLE {role} NOREPLICATION")

        def lost() -> bool:
            shop.rows("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
            with suppress(psycopg.Error):
                shop.rows(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                    " WHERE NOT active AND database = current_database()"
                )
            return captured_by(shop)[0] == 0

        wait_until(lost, PATIENCE, "the slot to be dropped")
        wait_until(lambda: captured_by(shop) == (0, 16), PATIENCE, lambda: f"triggers: {captured_by(shop)}")
        write(shop, 30)
        mirrored.becomes_equal(*TABLES)
    assert told(mirrored.config) == []
    mirrored.command("teardown", "--yes")
    assert owned(shop, role) == []


def test_a_group_whose_tables_the_role_can_not_publish_stays_with_triggers_and_check_says_why(
    shop: Database, granted: dict[str, Any], tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("wal2lake.scheduling.lanes.LOOK_SECONDS", 0.1)
    mirrored = Mirrored(shop, tmp_path / "lake", spark, **granted)
    mirrored.catches_up(*TABLES)
    shop.execute(f"ALTER ROLE {identifier(f'{shop.name} mirror')} REPLICATION")
    mirrored.configure(
        groups=[{**granted["groups"][0], "capture": "auto", "exclude": ["public.not_ours", "public.keyless"]}]
    )
    for _ in range(2):
        write(shop, 10)
        mirrored.catches_up(*TABLES)
        shop.execute("DELETE FROM plain WHERE id >= 10; DELETE FROM events WHERE id >= 10")
    assert captured_by(shop) == (0, 16)
    assert "tries the WAL again" not in caplog.text
    fix = [finding.fix for finding in check(mirrored.config) if "if a DBA makes the publication" in finding.consequence]
    assert len(fix) == 1
    assert fix[0].startswith(f'CREATE PUBLICATION "wal2lake_{GROUP}_tables" FOR TABLE')
