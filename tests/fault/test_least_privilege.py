"""A mirror runs with the role that `init --role-sql` makes, and `check` names each grant that is taken from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import Mirrored
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from remedies import fixes, toml
from servers import Database, fresh_database, tls_server
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
        "exclude": ['public.not_ours'], "publication": "for the lake",
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
        "RESET ROLE"
    )


@pytest.mark.parametrize(("capture", "elsewhere"), [("wal", False), ("poll", False), ("wal", True)])
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
    owned = shop.rows(
        "SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relowner = %s::regrole AND n.nspname <> 'pg_toast' UNION SELECT nspname::text FROM pg_namespace WHERE nspowner = %s::regrole",
        [role, role],
    )
    assert owned == ([] if elsewhere else [("wal2lake",)])


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
    "judge_partitions_to_come: ALTER DEFAULT PRIVILEGES FOR ROLE … IN SCHEMA … GRANT SELECT ON TABLES TO …;",
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
        "SELECT 'role', rolreplication::text, rolcanlogin::text FROM pg_roles WHERE oid = %(r)s::regrole ORDER BY 1, 2",
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
