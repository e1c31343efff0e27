"""Tables that can't be published: they are ERRORED with a remedy that works, and other tables are not affected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import PATIENCE, Mirrored, missed

from remedies import fixes, heals, steps
from servers import Database
from waiting import wait_until
from wal2lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY_WAL = [{"name": "default", "flush_interval": 0.1, "capture": "wal"}]
"""No table gets triggers."""


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """An ordinary role that may replicate and make publications, and owns no table."""
    name = f"{database.name}_app"
    database.execute(
        f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'x'; CREATE ROLE {name}_boss;"
        f'GRANT CREATE ON DATABASE "{database.name}" TO {name}; GRANT pg_read_all_data TO {name}'
    )
    try:
        yield name
    finally:
        database.execute(f"REASSIGN OWNED BY {name}, {name}_boss TO CURRENT_USER; DROP OWNED BY {name}, {name}_boss")
        database.execute(f"DROP ROLE {name}, {name}_boss")


def test_a_table_of_another_owner_waits_for_its_grant_and_the_others_are_mirrored(
    database: Database, role: str, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(f"CREATE TABLE ours (id int PRIMARY KEY); ALTER TABLE ours OWNER TO {role}")
    database.execute("INSERT INTO ours VALUES (1)")
    source = {"dsn": f"{database.dsn}?user={role}&password=x"}
    mirrored = Mirrored(database, tmp_path / "lake", spark, source=source)
    with mirrored.running():
        mirrored.is_streaming("ours")
        database.execute(
            f"CREATE TABLE theirs (id int PRIMARY KEY); ALTER TABLE theirs OWNER TO {role}_boss;"
            "INSERT INTO theirs VALUES (1);"
            f"CREATE TABLE later (id int PRIMARY KEY); ALTER TABLE later OWNER TO {role}; INSERT INTO later VALUES (1)"
        )
        refused = mirrored.fails("theirs", "must be owner of table theirs")
        assert refused.remedy == f'GRANT "{role}_boss" TO "{role}";'
        mirrored.follows("ours", "later")
        database.execute("ALTER TABLE ours ADD COLUMN v int")
        database.execute("INSERT INTO ours VALUES (2, 2)")
        mirrored.follows("ours", "later")
    result = mirrored.once()
    assert set(missed(result)) == {"theirs"}
    database.execute("INSERT INTO theirs VALUES (2); INSERT INTO later VALUES (2)")
    with mirrored.running():
        mirrored.is_streaming("later")
        mirrored.fails("theirs", "must be owner")
        database.execute(str(refused.remedy))
        mirrored.becomes_equal("ours", "theirs", "later")
        database.execute("UPDATE theirs SET id = 3 WHERE id = 2")
        mirrored.follows("theirs")


def test_a_table_without_an_identity_is_not_published_so_that_the_application_can_update_it(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (v int); INSERT INTO keyless VALUES (1)"
    )
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=BY_WAL)
    refused = missed(mirrored.once())["keyless"]
    assert "no primary key" in str(refused.error) and "append_only = true" in str(refused.remedy)
    database.execute("UPDATE keyless SET v = v + 1")
    database.execute(str(refused.remedy))
    mirrored.catches_up("t", "keyless")
    database.execute("UPDATE keyless SET v = v + 1")
    mirrored.catches_up("t", "keyless")


@pytest.mark.slow
def test_a_table_that_loses_its_key_is_taken_out_of_the_publication_and_copied_when_it_has_one_again(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE t (id int, v int, CONSTRAINT t_key PRIMARY KEY (id)); INSERT INTO t VALUES (1, 1);"
        "CREATE TABLE other (id int PRIMARY KEY)"
    )
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=BY_WAL)
    with mirrored.running():
        mirrored.is_streaming("t", "other")
        database.execute("ALTER TABLE t DROP CONSTRAINT t_key")
        refused = mirrored.fails("t", "no primary key")
        database.execute("UPDATE t SET v = 2; INSERT INTO t VALUES (2, 2), (2, 2); INSERT INTO other VALUES (1)")
        mirrored.follows("other")
    with mirrored.running():
        mirrored.is_streaming("other")
        mirrored.fails("t", "no primary key")
        database.execute(str(refused.remedy))
        mirrored.becomes_equal("t", "other")
        database.execute("UPDATE t SET v = 3 WHERE id = 1")
        mirrored.follows("t", "other")


@heals("UpdatesSeen")
@fixes("identity_fix: ALTER TABLE … REPLICA IDENTITY FULL;")
def test_an_append_only_table_follows_inserts_and_stops_at_an_update_until_it_is_copied_again(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE lines (v int); INSERT INTO lines VALUES (1), (1);"
        "CREATE TABLE parts (v int) PARTITION BY RANGE (v);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10); INSERT INTO parts VALUES (1)"
    )
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=BY_WAL)
    assert set(missed(mirrored.once())) == {"lines", "parts"}
    # The group has a stream without the second publication by now.
    mirrored.configure(tables={f"public.{name}": {"append_only": True} for name in ("lines", "parts")})
    with mirrored.running():
        mirrored.is_streaming("t", "lines", "parts")
        database.execute("INSERT INTO lines VALUES (2); INSERT INTO parts VALUES (2); INSERT INTO t VALUES (1)")
        mirrored.follows("t", "lines", "parts")
        database.execute("TRUNCATE lines; INSERT INTO lines VALUES (3); UPDATE t SET id = 2")
        mirrored.follows("t", "lines")
        database.execute("UPDATE lines SET v = 4; DELETE FROM parts WHERE v = 1; SELECT pg_stat_force_next_flush()")
        mirrored.fails("parts", "has counted 1 updated or deleted rows")
        stopped = mirrored.fails("lines", "has counted 1 updated or deleted rows")
        assert "wal2lake tables resync 'public.lines'" in str(stopped.remedy)
        mirrored.resync("lines", "parts")
        mirrored.becomes_equal("t", "lines", "parts")
        database.execute("INSERT INTO lines VALUES (5)")
        mirrored.follows("t", "lines", "parts")
    mirrored.configure(tables={"public.parts": {"append_only": True}})
    assert set(missed(mirrored.once())) == {"lines"}
    *_, identity = steps(str(stopped.remedy))
    assert isinstance(identity, str) and identity.endswith("REPLICA IDENTITY FULL")
    database.execute(f"{identity}; DELETE FROM lines WHERE v = 5")
    mirrored.catches_up("t", "lines", "parts")
    Mirror(mirrored.config).teardown()
    assert database.rows("SELECT pubname FROM pg_publication") == []


def test_a_row_filter_that_would_stop_updates_is_not_published(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    if database.connect().info.server_version < 150000:
        pytest.skip("PostgreSQL 14 publishes whole tables")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, s text NOT NULL); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    mirrored = Mirrored(database, tmp_path / "lake", spark, tables={"public.t": {"where": "s <> 'b'"}})
    with mirrored.running():
        refused = mirrored.fails("t", "row filter uses s")
        database.execute("UPDATE t SET s = 'c' WHERE id = 2")
        database.execute(str(refused.remedy))
        wait_until(lambda: (t := mirrored.table("t")) is not None and t.state == "STREAMING", PATIENCE, "streaming")
        database.execute("UPDATE t SET s = 'd'")


def test_a_transaction_that_wrote_a_table_before_it_was_published_hides_no_later_change(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Walsenders before 14.18, 15.13, 16.9 and 17.5 remember after such a transaction that it is not published."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1)"
    )
    groups = [{"name": "default", "tables": ["public.t"], "flush_interval": 0.1}]
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=groups)
    published = "SELECT count(*) FROM pg_publication_rel WHERE prrelid = 'later'::regclass"
    with mirrored.running(), database.connect(autocommit=False) as writer:
        mirrored.is_streaming("t")
        writer.execute("INSERT INTO later VALUES (2)")
        Mirror(mirrored.config).add(["public.later"])
        wait_until(lambda: database.value(published) == 1, PATIENCE, "published")
        writer.execute("INSERT INTO later VALUES (3)")
        writer.commit()
        mirrored.is_streaming("later")
        database.execute("INSERT INTO later VALUES (4); UPDATE later SET id = 10 WHERE id = 1")
        mirrored.follows("t", "later")


UNLOGGED_FOR_A_WHILE = (
    "BEGIN; ALTER TABLE t SET UNLOGGED; UPDATE t SET v = v + {change} WHERE id <= 3; ALTER TABLE t SET LOGGED; COMMIT"
)


def test_changes_of_a_table_that_was_unlogged_for_a_while_are_copied(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """PostgreSQL refuses that only to tables that are published by their name."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, 0 FROM generate_series(1, 9) i;"
        "CREATE PUBLICATION everything FOR ALL TABLES"
    )
    groups = [{"name": "default", "flush_interval": 0.1, "tables": ["public.t"], "publication": "everything"}]
    mirrored = Mirrored(database, tmp_path / "lake", spark, groups=groups)
    mirrored.catches_up("t")
    database.execute(UNLOGGED_FOR_A_WHILE.format(change=1))
    mirrored.catches_up("t")
    with mirrored.running():
        mirrored.is_streaming("t")
        database.execute(UNLOGGED_FOR_A_WHILE.format(change=10))
        # A change that is in the WAL does not hide those that are not.
        database.execute("UPDATE t SET v = v + 100 WHERE id >= 3")
        mirrored.becomes_equal("t")
        database.execute("UPDATE t SET v = v + 1000")
        mirrored.follows("t")
