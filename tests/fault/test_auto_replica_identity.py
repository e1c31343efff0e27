"""Tables without a key get a replica identity from the mirror, where the configuration says so, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirroring import GROUP, PATIENCE, Mirrored
from psycopg.conninfo import make_conninfo

from servers import Database
from waiting import wait_until
from wal2lake.mirror import Mirror
from wal2lake.preflight import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def groups(**settings: Any) -> list[dict[str, Any]]:
    return [{"name": GROUP, "flush_interval": 0.1, **settings}]


@pytest.fixture
def tables(database: Database) -> Database:
    database.execute(
        "CREATE TABLE keyless (a int, b text); INSERT INTO keyless SELECT i % 3, 'x' FROM generate_series(1, 30) i;"
        "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, b text); INSERT INTO late VALUES (1, 'l');"
        "CREATE TABLE silent (id int PRIMARY KEY, b text); ALTER TABLE silent REPLICA IDENTITY NOTHING;"
        "CREATE TABLE keyed (id int PRIMARY KEY, b text); INSERT INTO keyed VALUES (1, 'k');"
        "CREATE TABLE parted (k int, v text) PARTITION BY RANGE (k);"
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k);"
        "CREATE TABLE eleven PARTITION OF high FOR VALUES IN (11); INSERT INTO parted VALUES (1, 'a'), (11, 'b')"
    )
    return database


def identities(database: Database) -> dict[str, str]:
    return dict(
        database.rows(
            "SELECT relname::text, relreplident::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        )
    )


def change(database: Database) -> None:
    database.execute(
        "UPDATE keyless SET b = b || '.' WHERE a = 1; DELETE FROM keyless WHERE a = 2; INSERT INTO keyless VALUES (2, 'n');"
        "UPDATE late SET b = b || '.'; INSERT INTO silent SELECT count(*), 's' FROM silent; UPDATE silent SET b = b || '.';"
        "UPDATE parted SET v = v || '.'; UPDATE keyed SET b = b || '.'"
    )


ALL = ("keyless", "late", "silent", "keyed", "parted")


def test_tables_and_each_partition_get_one_also_partitions_that_come_later(
    tables: Database, tmp_path: Path, spark: SparkSession
) -> None:
    mirrored = Mirrored(tables, tmp_path / "lake", spark, groups=groups(auto_replica_identity=True))
    told = {one.object: one for one in check(mirrored.config) if "auto_replica_identity" in one.consequence}
    assert sorted(told) == ["public.keyless", "public.late", "public.parted", "public.silent"]
    assert "FULL on 2 of its partitions by the next run" in told["public.parted"].consequence
    assert "DEFAULT" in told["public.silent"].consequence
    assert not any(one.blocks for one in check(mirrored.config))
    mirrored.catches_up(*ALL)
    expected = {
        "keyless": "f", "late": "f", "silent": "d", "keyed": "d", "parted": "d", "high": "d", "low": "f", "eleven": "f",
    }  # fmt: skip
    assert identities(tables) == expected
    change(tables)
    mirrored.catches_up(*ALL)
    with mirrored.running():
        mirrored.is_streaming(*ALL)
        tables.execute("CREATE TABLE twelve PARTITION OF high FOR VALUES IN (12); INSERT INTO parted VALUES (12, 'c')")
        # The rows may come before the catalog is read again.
        mirrored.becomes_equal("parted")
        wanted = {**expected, "twelve": "f"}
        wait_until(lambda: identities(tables) == wanted, PATIENCE, lambda: f"identities: {identities(tables)}")
        change(tables)
        tables.execute("DELETE FROM parted WHERE k = 12")
        mirrored.becomes_equal(*ALL)
        mirrored.command("tables", "remove", "public.keyless")
    details = [entry.detail for entry in Mirror(mirrored.config).history("public.parted")]
    for leaf in ("low", "eleven", "twelve"):
        assert details.count(f"replica identity of public.{leaf} set to FULL") == 1
    assert not [one for one in check(mirrored.config) if "auto_replica_identity" in one.consequence]
    mirrored.command("teardown", "--yes")
    assert identities(tables) == wanted


@pytest.mark.parametrize(
    ("group", "keyless", "parted"), [(False, None, None), (False, True, None), (True, None, False)]
)
@pytest.mark.parametrize("capture", ["wal", "auto"])
def test_nothing_is_changed_unasked(
    tables: Database, tmp_path: Path, spark: SparkSession, group: bool, keyless: bool | None, parted: bool | None,
    capture: str,
) -> None:  # fmt: skip
    """What is not to be changed is refused, or captured by triggers where they may be installed."""
    sections = {
        f"public.{name}": {"auto_replica_identity": chosen}
        for name, chosen in {"keyless": keyless, "parted": parted}.items() if chosen is not None
    }  # fmt: skip
    before = identities(tables)
    made = groups(auto_replica_identity=group, tables=["public.keyless", "public.parted"], capture=capture)
    mirrored = Mirrored(tables, tmp_path / "lake", spark, groups=made, tables=sections)
    expected = {
        "public.keyless": group if keyless is None else keyless, "public.parted": group if parted is None else parted,
    }  # fmt: skip
    blocked = {one.object for one in check(mirrored.config) if one.blocks}
    missed = {table.name: table.remedy for table in mirrored.once().missed}
    others = {name for name, chosen in expected.items() if not chosen}
    assert set(missed) == blocked == (others if capture == "wal" else set())
    modes = {table.name: table.mode for table in Mirror(mirrored.config).tables()}
    by_triggers = {name for name, mode in modes.items() if mode == "TRIGGER"}
    assert by_triggers == (others if capture == "auto" else set())
    assert all("REPLICA IDENTITY FULL" in str(remedy) for remedy in missed.values())
    after = identities(tables)
    changed = {"keyless"} if expected["public.keyless"] else set()
    changed |= {"low", "eleven"} if expected["public.parted"] else set()
    assert {name for name in before if before[name] != after[name]} == changed


def test_a_partition_of_another_owner_is_refused_with_the_statement(
    tables: Database, tmp_path: Path, spark: SparkSession
) -> None:
    role, other = f"{tables.name}_mirror", f"{tables.name}_other"
    tables.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; CREATE ROLE {other}; GRANT CREATE ON DATABASE {tables.name} TO {role};"
        f"ALTER ROLE {role} REPLICATION; GRANT ALL ON SCHEMA public TO {role}, {other};"
        f"ALTER TABLE parted OWNER TO {role}; ALTER TABLE keyless OWNER TO {role}; ALTER TABLE high OWNER TO {role};"
        f"ALTER TABLE low OWNER TO {role}; ALTER TABLE eleven OWNER TO {other}; GRANT SELECT ON eleven TO {role}"
    )
    dsn = make_conninfo(tables.dsn, user=role, password="x")
    made = groups(auto_replica_identity=True, tables=["public.keyless", "public.parted"])
    mirrored = Mirrored(tables, tmp_path / "lake", spark, groups=made, source={"dsn": dsn})
    assert [one.object for one in check(mirrored.config) if one.blocks] == ["public.parted"]
    (missed,) = mirrored.once().missed
    assert missed.name == "public.parted"
    assert missed.remedy is not None
    assert missed.remedy.startswith('ALTER TABLE "public"."eleven" REPLICA IDENTITY FULL;')
    mirrored.equal("keyless")
    mirrored.apply_requests(missed.remedy.partition(" --")[0])
    mirrored.catches_up("keyless", "parted")
