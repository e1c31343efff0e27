"""What triggers capture, on a real server: added to what was there, each drain gives what its snapshot sees."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from decoding import KINDS, Source
from servers import Database, can_declare, fresh_database, server_major
from trigger_lanes import Lane
from waiting import wait_until
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import OtherInstallation, SourceRefused
from wal2lake.position import Lsn
from wal2lake.preflight import check
from wal2lake.source import connect, follow_columns
from wal2lake.source.sessions import Patience
from wal2lake.source.triggers import Condition, TriggerStream, tidy, trigger_conditions

OWN_TYPES = (
    "CREATE TYPE mood AS ENUM ('so so', 'NULL'); CREATE TYPE pair AS (x int, y text);"
    "CREATE DOMAIN price AS numeric(10,2);"
)


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Iterator[Callable[..., Lane]]:
    made: list[Lane] = []

    def lane(statements: str) -> Lane:
        database.execute(statements)
        made.append(Lane(database, tmp_path / f"lake{len(made)}"))
        made[-1].begin()
        return made[-1]

    yield lane
    for each in made:
        each.close()


@pytest.fixture
def lane(make: Callable[..., Lane]) -> Lane:
    return make(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(6, 2));"
        "INSERT INTO t SELECT i, 'v' || i, i FROM generate_series(1, 20) AS i"
    )


def equal(lane: Lane, *tables: str) -> None:
    """After a drain nothing is left, and nothing had to be given up."""
    with lane.open() as stream:
        while lane.drain(stream):
            pass
    assert lane.marks == []
    for table in tables or ("t",):
        assert lane.held(table) == lane.expected(table)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t SELECT i, NULL, i FROM generate_series(100, 150) AS i",
        "UPDATE t SET v = v || '!' WHERE id > 5",
        "DELETE FROM t WHERE id % 2 = 0",
        "UPDATE t SET id = id + 100",
        "UPDATE t SET id = 1000 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; UPDATE t SET id = 2 WHERE id = 1000",
        "INSERT INTO t VALUES (1, 'a', 1), (99, 'b', 2) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "INSERT INTO t VALUES (1, 'a', 1) ON CONFLICT DO NOTHING",
        "WITH gone AS (DELETE FROM t WHERE id < 5 RETURNING *) INSERT INTO t SELECT id + 500, v, n FROM gone",
        "WITH a AS (UPDATE t SET v = 'a' WHERE id = 1), b AS (INSERT INTO t VALUES (77)) DELETE FROM t WHERE id = 3",
        "UPDATE t SET v = v WHERE id = 1; UPDATE t SET v = 'x' WHERE id = 1; DELETE FROM t WHERE id = 1",
        "DELETE FROM t WHERE false",
        "TRUNCATE t",
        "DELETE FROM t; INSERT INTO t VALUES (1); TRUNCATE t; INSERT INTO t VALUES (2)",
        "SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; INSERT INTO t VALUES (50)",
        "SAVEPOINT s; TRUNCATE t; ROLLBACK TO s; SAVEPOINT s2; INSERT INTO t VALUES (50); RELEASE s2",
        "SET LOCAL session_replication_role = replica; UPDATE t SET v = 'r'",
        "SET LOCAL DateStyle = 'German'; SET LOCAL extra_float_digits = -5; UPDATE t SET v = 'g'",
        "SET LOCAL search_path = pg_temp; UPDATE public.t SET v = 'p'",
    ],
)
def test_a_statement(lane: Lane, statement: str) -> None:
    with lane.database.connect(autocommit=False) as session:
        session.execute(statement.encode())
    equal(lane)


@pytest.mark.skipif(server_major() < 15, reason="MERGE came with PostgreSQL 15")
def test_merge(lane: Lane) -> None:
    lane.database.execute(
        "MERGE INTO t USING (SELECT generate_series(15, 25) AS id) AS s ON t.id = s.id"
        " WHEN MATCHED AND t.id = 16 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'm'"
        " WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'new')"
    )
    equal(lane)


def test_copy(lane: Lane) -> None:
    with lane.database.connect() as session, session.cursor().copy("COPY t (id, v) FROM STDIN") as copy:
        for number in range(100, 200):
            copy.write_row((number, "c"))
    equal(lane)


def test_the_rows_of_a_statement_have_one_number_and_a_truncation_has_its_place(lane: Lane) -> None:
    lane.database.execute("UPDATE t SET v = 'a'; INSERT INTO t SELECT generate_series(100, 199)")
    lane.database.execute("TRUNCATE t; INSERT INTO t SELECT generate_series(200, 299)")
    buffer = f"wal2lake_changes.changes_{next(iter(lane.rows))}"
    kinds = "string_agg(DISTINCT op::text, '' ORDER BY op::text)"
    numbered = lane.database.rows(f"SELECT {kinds} FROM {buffer} GROUP BY id ORDER BY id")
    assert numbered == [("DI",), ("I",), ("T",), ("I",)]
    equal(lane)


def test_columns_with_names_that_the_function_uses_itself(make: Callable[..., Lane]) -> None:
    lane = make("CREATE TABLE t (n int, number int, xid int, wal2lake int, id int, op text, c0 int, wal2lake_new int)")
    lane.database.execute("INSERT INTO t SELECT 1, 2, 3, 4, 5, '6', 7, i FROM generate_series(1, 5) AS i")
    lane.database.execute("UPDATE t SET wal2lake = number, n = xid WHERE wal2lake_new > 2")
    equal(lane)


def test_a_trigger_that_changes_the_row_once_more(make: Callable[..., Lane]) -> None:
    """Its statement ends, and is recorded, before the one that it is part of."""
    lane = make(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.v = 'first' THEN UPDATE t SET v = 'second' WHERE id = NEW.id;"
        " ELSIF NEW.v = 'gone' THEN DELETE FROM t WHERE id = NEW.id; END IF; RETURN NULL; END $$;"
        "CREATE TRIGGER again AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION again()"
    )
    lane.database.execute("INSERT INTO t VALUES (1, 'first'), (2, 'gone'), (3, 'stays')")
    lane.database.execute("UPDATE t SET v = 'first' WHERE id = 3")
    assert lane.database.rows("SELECT id, v FROM t ORDER BY id") == [(1, "second"), (3, "second")]
    equal(lane)


def test_a_function_that_changes_rows_of_the_statement_that_calls_it(make: Callable[..., Lane]) -> None:
    lane = make(
        "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0), (2, 0);"
        "CREATE FUNCTION meddle() RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE t SET v = v + 10 WHERE id = 1; RETURN 5; END $$"
    )
    lane.database.execute("INSERT INTO t SELECT 3, meddle()")
    lane.database.execute("UPDATE t SET v = meddle() WHERE id = 2")
    equal(lane)


def test_cascades_and_deferred_constraints(make: Callable[..., Lane]) -> None:
    lane = make(
        "CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED);"
        "CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t ON DELETE SET NULL ON UPDATE CASCADE);"
        "INSERT INTO t SELECT i, nullif(i / 2, 0) FROM generate_series(1, 30) AS i;"
        "INSERT INTO child SELECT i, i FROM generate_series(1, 30) AS i"
    )
    lane.database.execute("DELETE FROM t WHERE id = 3")
    lane.database.execute("UPDATE t SET id = 1000 WHERE id = 15")
    with lane.database.connect(autocommit=False) as session:
        session.execute("INSERT INTO t VALUES (500, 501)")
        session.execute("INSERT INTO t VALUES (501, NULL)")
    equal(lane, "t", "child")


def test_values_of_each_type(make: Callable[..., Lane]) -> None:
    kinds = {f"t{number}": kind for number, kind in enumerate(filter(can_declare, KINDS))}
    lane = make(OWN_TYPES + "".join(f"CREATE TABLE {name} (id int, v {kind});" for name, kind in kinds.items()))
    for name, kind in kinds.items():
        rows = ", ".join(f"({number}, {value})" for number, value in enumerate(KINDS[kind]))
        lane.database.execute(f"INSERT INTO {name} VALUES {rows}")
        lane.database.execute(f"UPDATE {name} SET id = id + 100 WHERE id % 2 = 0; DELETE FROM {name} WHERE id = 1")
    equal(lane, *kinds)


def test_values_in_binary_form_are_those_of_the_text(make: Callable[..., Lane]) -> None:
    """Also those that are NULL, in rows that were inserted, updated and deleted, beside a truncation."""
    kinds = [
        "boolean", "int2", "int4", "int8", "float4", "float8", "text", "char(5)", "name", "bytea", "date", "timestamp",
        "timestamptz", "jsonb", "uuid", "json", "numeric(12,2)",
    ]  # fmt: skip
    given = {**KINDS, "numeric(12,2)": ["-9999999999.99", "0.01", "0"]}
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    lane = make(f"CREATE TABLE t (id int, {columns})")
    lane.database.execute("INSERT INTO t VALUES (-1); TRUNCATE t; INSERT INTO t VALUES (0), (1)")
    for number, kind in enumerate(kinds):
        for value in given[kind]:
            lane.database.execute(f"INSERT INTO t (id, c{number}) VALUES (2, ({value})::{kind})")
            lane.database.execute(f"UPDATE t SET c{number} = ({value})::{kind} WHERE id = 1")
    lane.database.execute("DELETE FROM t WHERE id = 0")
    cuts = []
    with closing(psycopg.connect(lane.database.dsn, autocommit=True)) as connection:
        source = Source(connection)
        for decoder in (source.decoder, source.binary_decoder):
            with lane.open(decoder is source.binary_decoder) as stream:
                assert lane.drain(stream, acknowledge=False, apply=False)
                decoder.feed(lane.found)
                cuts.append(decoder.cut())
    text, binary = cuts
    (one,), (other,) = text.tables, binary.tables
    other.batch.validate(full=True)
    # Each drain has a position, a time and a snapshot of its own.
    own = {"_commit_lsn", "_commit_ts", "_xid"}
    differing = [name for name in one.batch.schema.names if one.batch[name] != other.batch[name]]
    assert set(differing) <= own and one.batch.num_rows > 60
    assert text.refusals == binary.refusals == {} and len(text.truncations) == len(binary.truncations) == 1


def test_types_that_users_made_can_be_altered_and_dropped(make: Callable[..., Lane]) -> None:
    lane = make(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b date); CREATE DOMAIN small AS int;"
        "CREATE TABLE t (id int, m mood, p pair, s small, q pair[])"
    )
    lane.database.execute("INSERT INTO t VALUES (1, 'ok', (1, '2026-01-02'), 3, ARRAY[(4, '2026-05-06')::pair])")
    lane.database.execute("ALTER TYPE mood ADD VALUE 'glad'")
    equal(lane)
    lane.database.execute("DROP TABLE t; DROP TYPE mood; DROP TYPE pair; DROP DOMAIN small")


def test_buffers_are_emptied_beside_a_publication_of_all_tables(lane: Lane) -> None:
    lane.database.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    lane.database.execute("INSERT INTO t VALUES (100, 'published')")
    equal(lane)
    relid = lane.database.value("SELECT 't'::regclass::oid")
    assert lane.database.value(f"SELECT count(*) FROM wal2lake_changes.changes_{relid}") == 0


def test_an_open_transaction_holds_back_its_own_rows_alone(lane: Lane) -> None:
    idle = lane.database.connect(autocommit=False)
    idle.execute("INSERT INTO t VALUES (100, 'idle')")
    lane.database.execute("INSERT INTO t VALUES (101, 'others')")
    equal(lane)
    assert ("101", "others", None) in lane.held("t")
    idle.commit()
    equal(lane)
    assert ("100", "idle", None) in lane.held("t")


def test_a_prepared_transaction(lane: Lane) -> None:
    session = lane.database.connect(autocommit=False)
    session.execute("DELETE FROM t WHERE id < 10")
    session.execute("PREPARE TRANSACTION 'p'")
    lane.database.execute("DELETE FROM t WHERE id > 15")
    equal(lane)
    lane.database.execute("COMMIT PREPARED 'p'")
    equal(lane)


def test_nothing_is_lost_or_doubled_by_a_crash_before_or_after_a_drain_is_durable(lane: Lane) -> None:
    lane.database.execute("INSERT INTO t VALUES (100)")
    before = Counter(lane.held("t"))
    with lane.open() as stream:
        assert lane.drain(stream, acknowledge=False)
    # It was not durable: what was read of it counts for nothing.
    lane.rows[lane.database.value("SELECT 't'::regclass::oid::int8")] = before
    lane.database.execute("DELETE FROM t WHERE id = 100")
    equal(lane)
    lane.database.execute("INSERT INTO t VALUES (200)")
    with lane.open() as stream:
        assert lane.drain(stream, acknowledge=False)
        lane.position, token = max(stream._pending), stream.token(max(stream._pending))
        lane.token = token
    # It was durable, and its rows were not deleted.
    equal(lane)
    assert buffered(lane) == 0


def buffered(lane: Lane) -> int:
    names = lane.database.rows("SELECT tablename FROM pg_tables WHERE tablename LIKE 'changes_%'")
    return sum(lane.database.value(f"SELECT count(*) FROM wal2lake_changes.{name}") for (name,) in names)


def test_a_user_without_rights_on_our_schema_can_write(lane: Lane) -> None:
    database = lane.database
    role = f"writer_{database.name}"
    database.execute(f"CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t TO {role}")
    try:
        database.execute(f"SET ROLE {role}; INSERT INTO t VALUES (300); UPDATE t SET v = 'w' WHERE id = 300")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            database.execute("SELECT * FROM wal2lake_changes.lanes")
        database.execute("RESET ROLE")
        equal(lane)
    finally:
        database.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t ADD COLUMN w int DEFAULT 7",
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "ALTER TABLE t ALTER COLUMN n TYPE numeric(20, 8)",
        "ALTER TABLE t ALTER COLUMN n TYPE text",
        "ALTER TABLE t DROP COLUMN v, ADD COLUMN v text",
        "ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u",
    ],
)
def test_writers_go_on_when_a_table_is_altered(lane: Lane, ddl: str) -> None:
    """What is written before the buffer has the new columns is not captured but marked; later rows are."""
    database = lane.database
    older = database.connect(autocommit=False)
    older.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    older.execute("SELECT 1")
    database.execute("INSERT INTO t (id) VALUES (100)")
    database.execute(ddl)
    # Its snapshot is older than the columns.
    older.execute("INSERT INTO t (id) VALUES (101)")
    older.commit()
    table = "u" if "VIEW" in ddl else "t"
    oid = database.value(f"SELECT '{table}'::regclass::oid::int8")
    with lane.open() as stream:
        while lane.drain(stream):
            pass
        # A modifier of a type can't be told from the rows; a buffer's columns have none, so that each value fits.
        untold = table == "u" or "numeric(20" in ddl
        assert lane.marks == ([] if untold else [oid])
        assert conditions_of(lane, oid) is Condition.INSTALLED
        # As after a copy.
        lane.rows[oid] = Counter(lane.expected(table))
        lane.marks.clear()
        database.execute(f"INSERT INTO {table} (id) VALUES (102); DELETE FROM {table} WHERE id = 1")
        while lane.drain(stream):
            pass
    assert lane.marks == []
    assert lane.held(table) == lane.expected(table)
    with connect(lane.config.source) as conn:
        tidy(conn, lane.source.slot_name)
    assert database.value("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'changes_%'") == 1


def conditions_of(lane: Lane, oid: int) -> Condition:
    with connect(lane.config.source) as conn:
        return trigger_conditions(conn, lane.source.slot_name, [oid])[oid]


def test_a_table_that_is_altered_while_nobody_writes_is_captured_in_its_new_columns(lane: Lane) -> None:
    lane.database.execute("ALTER TABLE t ADD COLUMN w int")
    with lane.open() as stream:
        lane.drain(stream)
        lane.database.execute("INSERT INTO t VALUES (100, 'a', 1, 2)")
        lane.drain(stream)
    assert lane.marks == []
    assert ("100", "a", "1.00", "2") in lane.held("t")


def test_what_is_missing_disabled_or_changed_is_seen(lane: Lane) -> None:
    database = lane.database
    oid = database.value("SELECT 't'::regclass::oid::int8")
    (schema,) = lane.source.discover()
    assert conditions_of(lane, oid) is Condition.INSTALLED
    assert lane.source.unpublished([schema]) == frozenset()
    name = database.value(f"SELECT tgname FROM pg_trigger WHERE tgrelid = {oid} AND tgname LIKE 'wal2lake_update%'")
    for spoil, condition in {
        f"ALTER TABLE t DISABLE TRIGGER {name}": Condition.DISABLED,
        f"ALTER TABLE t ENABLE TRIGGER {name}": Condition.DISABLED,
        f"DROP TRIGGER {name} ON t": Condition.MISSING,
        f"DROP FUNCTION wal2lake_changes.capture_{oid}() CASCADE": Condition.MISSING,
        "ALTER TABLE t ADD COLUMN w int": Condition.OUTDATED,
    }.items():
        database.execute(spoil)
        assert conditions_of(lane, oid) is condition
        assert lane.source.publish(lane.source.discover()) == {}
        assert conditions_of(lane, oid) is Condition.INSTALLED


def test_a_table_is_described_again_only_if_its_buffer_is_another_one(lane: Lane) -> None:
    """Whoever reads a description asks the catalog for the table, which would take longer than a small drain."""
    database = lane.database

    def described(stream: TriggerStream) -> int:
        assert lane.drain(stream)
        return sum(message[25:26] == b"R" for message in lane.found)

    with lane.open() as stream:
        database.execute("INSERT INTO t (id) VALUES (100)")
        assert described(stream) == 1
        database.execute("INSERT INTO t (id) VALUES (101)")
        assert described(stream) == 0
        # The description of a column that takes the place of another one reads the same.
        database.execute("ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v text")
        lane.source.publish(lane.source.discover())
        database.execute("INSERT INTO t (id) VALUES (102)")
        assert described(stream) == 1
    with lane.open() as stream:
        database.execute("INSERT INTO t (id) VALUES (103)")
        assert described(stream) == 1


def test_what_waits_in_the_buffers_counts_as_behind(lane: Lane) -> None:
    assert lane.source.standing().lag_bytes == 0
    lane.database.execute("INSERT INTO t (id) VALUES (100)")
    assert lane.source.standing().lag_bytes > 0
    with lane.open() as stream:
        assert lane.drain(stream)
    assert lane.source.standing().lag_bytes == 0


def test_tables_that_triggers_can_not_follow_are_refused(make: Callable[..., Lane], server: EmbeddedServer) -> None:
    lane = make("CREATE TABLE t (id int); CREATE TABLE parent (id int); CREATE TABLE subscribed (id int PRIMARY KEY);"
                "CREATE TABLE remote (id int) PARTITION BY LIST (id)")  # fmt: skip
    database = lane.database
    database.execute("CREATE TABLE child () INHERITS (parent); CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
                     "CREATE FOREIGN TABLE far PARTITION OF remote FOR VALUES IN (1) SERVER s")  # fmt: skip
    with fresh_database(server) as publisher:
        publisher.execute("CREATE TABLE subscribed (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE subscribed")
        options = "create_slot = false, slot_name = none, copy_data = false, enabled = false"
        database.execute(
            f"CREATE SUBSCRIPTION s_{database.name} CONNECTION '{publisher.dsn}' PUBLICATION p WITH ({options})"
        )
        try:
            schemas = {schema.id.name: schema for schema in lane.source.discover()}
            refused = lane.source.publish(list(schemas.values()))
            causes = {name: refused[schemas[name].oid] for name in schemas if schemas[name].oid in refused}
            # A statement on the parent changes rows of the child, and fires no statement-level triggers of it.
            assert sorted(causes) == ["child", "parent", "remote", "subscribed"]
            assert all(isinstance(error, SourceRefused) for error in causes.values())
            for name, why in {
                "parent": "inherit",
                "child": "inherits from",
                "remote": "foreign",
                "subscribed": "subscription",
            }.items():
                assert why in str(causes[name])
                told = [
                    str(one.consequence) for one in check(lane.config) if one.object == f"public.{name}" and one.blocks
                ]
                assert any("can't be captured by triggers" in text and why in text for text in told), told
        finally:
            database.execute(f"DROP SUBSCRIPTION s_{database.name}")


def test_partitions_written_through_the_root_and_straight(make: Callable[..., Lane]) -> None:
    lane = make(
        "CREATE TABLE t (k int, v text) PARTITION BY RANGE (k);"
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high (v text, extra int, k int); ALTER TABLE high DROP COLUMN extra;"
        "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (10) TO (20);"
        "INSERT INTO t SELECT i, 'a' FROM generate_series(0, 19) AS i"
    )
    database = lane.database
    database.execute("INSERT INTO t VALUES (1, 'root'), (11, 'root'); INSERT INTO high VALUES ('leaf', 12)")
    database.execute("INSERT INTO low VALUES (2, 'leaf'); UPDATE t SET k = k + 10 WHERE k < 5")
    database.execute("DELETE FROM high WHERE k = 15; UPDATE t SET v = 'b' WHERE k > 7")
    equal(lane)


def test_a_partition_that_comes_later(make: Callable[..., Lane]) -> None:
    lane = make("CREATE TABLE t (k int, v text) PARTITION BY RANGE (k)")
    database = lane.database
    database.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    lane.source.publish(lane.source.discover())
    database.execute("INSERT INTO low VALUES (1, 'a'); INSERT INTO t VALUES (2, 'b')")
    equal(lane)
    database.execute("CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20); INSERT INTO high VALUES (11, 'c')")
    lane.source.publish(lane.source.discover())
    with lane.open() as stream:
        while lane.drain(stream):
            pass
    # Rows of it may be missing, so the table is to be re-copied.
    assert lane.marks == [database.value("SELECT 't'::regclass::oid::int8")]


def drained(lane: Lane) -> list[int]:
    """Drain everything; the tables that are marked to be re-copied."""
    with lane.open() as stream:
        while lane.drain(stream):
            pass
    found, lane.marks = sorted(set(lane.marks)), []
    return found


PARTED = (
    "CREATE TABLE t (k int, v text) PARTITION BY RANGE (k);"
    "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE middle PARTITION OF t FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (k);"
    "CREATE TABLE deep PARTITION OF middle FOR VALUES FROM (10) TO (15); INSERT INTO t VALUES (1, 'a'), (11, 'a');"
)


@pytest.mark.parametrize(
    ("detach", "leaf", "number"),
    [
        ("ALTER TABLE t DETACH PARTITION low", "low", 2),
        ("ALTER TABLE t DETACH PARTITION middle", "deep", 12),
        ("ALTER TABLE t DETACH PARTITION low CONCURRENTLY", "low", 2),
        ("CREATE TABLE u (LIKE t) PARTITION BY RANGE (k); ALTER TABLE t DETACH PARTITION low;"
         " ALTER TABLE u ATTACH PARTITION low FOR VALUES FROM (0) TO (10)", "low", 2),
    ],
)  # fmt: skip
def test_what_is_written_to_a_detached_partition_is_none_of_its_former_table(
    make: Callable[..., Lane], detach: str, leaf: str, number: int
) -> None:
    lane = make(PARTED)
    database, (oid,) = lane.database, lane.rows
    for statement in detach.split("; "):
        database.execute(statement)
    before = Counter(lane.rows[oid])
    database.execute(f"INSERT INTO {leaf} VALUES ({number}, 'not of t'); UPDATE {leaf} SET v = 'changed'")
    assert drained(lane) == [oid]
    assert lane.rows[oid] == before
    with connect(lane.config.source) as conn:
        tidy(conn, lane.source.slot_name)
        assert conditions_of(lane, oid) is Condition.INSTALLED
    triggers = f"SELECT count(*) FROM pg_trigger WHERE tgrelid = '{leaf}'::regclass AND tgname LIKE 'wal2lake%'"
    assert database.value(triggers) == 0
    database.execute(f"INSERT INTO {leaf} VALUES ({number}, 'later')")
    assert drained(lane) == []


@pytest.mark.parametrize("by", ["run", "capture"])
def test_a_mirrored_table_that_becomes_a_partition(make: Callable[..., Lane], by: str) -> None:
    """Until its triggers fill the buffer of the root, what is written to it is in none of the root's."""
    lane = make(PARTED + "CREATE TABLE other (k int, v text)")
    database = lane.database
    root = database.value("SELECT 't'::regclass::oid::int8")
    database.execute("ALTER TABLE t ATTACH PARTITION other FOR VALUES FROM (20) TO (30)")
    database.execute("INSERT INTO other VALUES (21, 'straight')")
    if by == "capture":
        with connect(lane.config.source) as conn:
            follow_columns(conn, lane.source.slot_name, lane.config.tables_of(lane.config.groups[0]))
    else:
        lane.source.publish(lane.source.discover())
    assert root in drained(lane)
    lane.source.publish(lane.source.discover())
    drained(lane)
    lane.rows[root] = Counter(lane.expected("t"))
    database.execute("INSERT INTO other VALUES (22, 'later'); UPDATE t SET v = 'b' WHERE k > 20")
    equal(lane)


def test_triggers_of_others_that_come_before_and_after_ours(make: Callable[..., Lane]) -> None:
    """Those of a table fire in the order of their names; each may write the table again, or change what is written."""
    body = "LANGUAGE plpgsql AS $$ BEGIN IF pg_trigger_depth() < 2 THEN UPDATE t SET v = v || TG_NAME WHERE n < 50; END IF; RETURN NULL; END $$"
    made = "".join(
        f"CREATE TRIGGER {name} AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH {each} EXECUTE FUNCTION again();"
        for name, each in {"aaa": "STATEMENT", "zzz": "STATEMENT", "bbb": "ROW", "yyy": "ROW"}.items()
    )
    lane = make(
        f"CREATE TABLE t (id int PRIMARY KEY, v text, n int); CREATE FUNCTION again() RETURNS trigger {body}; {made}"
        "CREATE FUNCTION before() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = 7 THEN RETURN NULL; END IF;"
        " NEW.n := coalesce(NEW.n, 0) + 1; RETURN NEW; END $$;"
        "CREATE TRIGGER before BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION before()"
    )
    lane.database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 9) i")
    lane.database.execute("UPDATE t SET v = 'w' WHERE id < 5; DELETE FROM t WHERE id = 3; UPDATE t SET id = id + 100")
    assert lane.database.value("SELECT count(*) FROM t WHERE v LIKE '%aaa%'")
    equal(lane)


def test_writers_never_fail_beside_ddl(make: Callable[..., Lane]) -> None:
    """Columns come, go, are renamed and retyped while sessions write; a re-copy begins with the columns as they are."""
    lane = make("CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(6, 2))")
    database, (oid,) = lane.database, lane.rows
    stop, errors = threading.Event(), list[BaseException]()

    def write(number: int, isolation: str) -> None:
        # Of its own rows: two that write the same ones in another order would wait for each other.
        mine = f"id % 2 = {number % 2}"
        own = f"UPDATE t SET id = id WHERE {mine} AND id % 3 = 0; DELETE FROM t WHERE {mine} AND id % 7 = 0"
        with database.connect() as session:
            session.execute(f"SET default_transaction_isolation = '{isolation}'".encode())
            while not stop.is_set():
                try:
                    session.execute("INSERT INTO t (id) VALUES (%s) ON CONFLICT (id) DO NOTHING", [number])
                    session.execute(own.encode())
                except psycopg.errors.SerializationFailure:
                    pass
                except psycopg.Error as error:
                    errors.append(error)
                    return
                number += 2

    levels = ("read committed", "repeatable read")
    writers = [threading.Thread(target=write, args=(number, level)) for number, level in enumerate(levels)]
    with lane.open() as stream:
        for writer in writers:
            writer.start()
        try:
            for ddl in (
                "ADD COLUMN w int DEFAULT 7", "DROP COLUMN v", "RENAME COLUMN w TO x", "ALTER COLUMN n TYPE numeric(20, 8)",
                "ALTER COLUMN x TYPE text", "ADD COLUMN v text[]", "ALTER COLUMN n TYPE double precision", "DROP COLUMN x",
            ):  # fmt: skip
                database.execute(f"ALTER TABLE t {ddl}")
                wait_until(lambda: conditions_of(lane, oid) is Condition.INSTALLED or lane.drain(stream, apply=False) is None,
                           30, "the triggers to follow")  # fmt: skip
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        assert errors == []
        while lane.drain(stream):
            pass
        lane.rows[oid], lane.marks = Counter(lane.expected("t")), []
        database.execute("INSERT INTO t (id) VALUES (-1); UPDATE t SET v = ARRAY['a'] WHERE id < 50")
        while lane.drain(stream):
            pass
    assert lane.marks == []
    assert lane.held("t") == lane.expected("t")


def test_a_lane_of_another_installation_stays(lane: Lane) -> None:
    """Both have a group of the same name in the same database."""
    lane.database.execute("UPDATE wal2lake_changes.lanes SET mark = 'another'")
    lane.source.drop_publication()
    assert lane.database.value("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'wal2lake%'") == 4
    with pytest.raises(OtherInstallation):
        lane.source.create_slot()


def test_a_dropped_table_is_drained_and_forgotten(lane: Lane) -> None:
    lane.database.execute("INSERT INTO t VALUES (100); DROP TABLE t")
    lane.source.publish([])
    assert buffered(lane) == 1
    with lane.open() as stream:
        assert lane.drain(stream)
    with connect(lane.config.source) as conn:
        tidy(conn, lane.source.slot_name)
    assert lane.database.value("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'changes_%'") == 0
    assert lane.database.value("SELECT count(*) FROM pg_proc WHERE proname LIKE 'capture_%'") == 0


@pytest.mark.timeout(60)
def test_a_drain_does_not_wait_for_a_table_that_is_locked(make: Callable[..., Lane]) -> None:
    """Whether triggers are as they should be is looked at once a second; an open TRUNCATE or DDL must not stop that."""
    lane = make(
        "CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE TABLE parted (k int) PARTITION BY RANGE (k);"
        "CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (10)"
    )
    with closing(lane.database.connect(autocommit=False)) as other:
        other.execute("TRUNCATE parted")
        lane.database.execute("INSERT INTO t VALUES (1)")
        with lane.open() as stream:
            assert lane.drain(stream)
        other.rollback()
    equal(lane, "t")


def test_a_copy_is_at_the_position_of_its_drain(lane: Lane) -> None:
    """Under writers: what the snapshot of a copy sees, and what is drained after it, are the table."""
    stop = threading.Event()

    def write() -> None:
        chance = random.Random(1)
        with psycopg.connect(lane.database.dsn, autocommit=True) as session:
            while not stop.is_set():
                session.execute("INSERT INTO t VALUES (%s) ON CONFLICT DO NOTHING", [chance.randrange(1000)])
                session.execute("DELETE FROM t WHERE id = %s", [chance.randrange(1000)])

    writer = threading.Thread(target=write)
    writer.start()
    taken: list[Lane] = []

    def take() -> None:
        with lane.source.open_snapshot() as opened, connect(lane.config.source) as conn, conn.transaction():
            other = Lane(lane.database, Path("/nonexistent"))
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute(f"SET TRANSACTION SNAPSHOT '{opened.snapshot.name}'".encode())
            oid = lane.database.value("SELECT 't'::regclass::oid::int8")
            from trigger_lanes import contents

            other.rows[oid], other.position = contents(conn, str(oid)), opened.snapshot.lsn
            taken.append(other)

    try:
        with lane.open() as stream:
            for _ in range(3):
                copier = threading.Thread(target=take)
                copier.start()
                before = len(taken)
                while len(taken) == before:
                    lane.drain(stream)
                copier.join()
                copy = taken[-1]
                # The drain that the copy asked for was the last one at or below its position.
                assert lane.at(copy.position, "t") == copy.held("t")
    finally:
        stop.set()
        writer.join()


def test_a_copy_whose_answer_another_copy_asks_over_asks_again(lane: Lane) -> None:
    database, lanes = lane.database, "wal2lake_changes.lanes"
    taken: list[Lsn] = []
    given_up = threading.Event()

    def take() -> None:
        with lane.source.open_snapshot(Patience(given_up.is_set)) as opened:
            taken.append(opened.snapshot.lsn)

    copier = threading.Thread(target=take)
    copier.start()
    try:
        asked = f"SELECT asked FROM {lanes} WHERE answered IS NULL"
        wait_until(lambda: database.value(asked) is not None, 10, "the copy to ask")
        # As one transaction, so that the answer can't be read in between.
        database.execute(
            f"UPDATE {lanes} SET answered = asked, granted = true;"
            f"UPDATE {lanes} SET asked = 'another', answered = NULL, granted = false"
        )
        database.execute(f"UPDATE {lanes} SET asked = NULL")
        wait_until(lambda: database.value(asked) is not None, 10, "the copy to ask again")
        position = database.value(f"SELECT asked_position::text FROM {lanes}")
        database.execute(f"UPDATE {lanes} SET answered = asked, granted = true")
        wait_until(lambda: not copier.is_alive(), 10, "the copy to have its snapshot")
        assert taken == [Lsn.parse(position)]
    finally:
        given_up.set()
        copier.join()


def test_a_buffer_that_is_emptied_behind_the_drains_does_not_grow(lane: Lane) -> None:
    buffer = f"wal2lake_changes.changes_{next(iter(lane.rows))}"
    sizes = []
    with lane.open() as stream:
        for _ in range(6):
            lane.database.execute("INSERT INTO t SELECT 1000 + i, 'grows' FROM generate_series(1, 8000) AS i")
            lane.database.execute("UPDATE t SET v = 'again' WHERE id > 1000; DELETE FROM t WHERE id > 1000")
            assert lane.drain(stream, apply=False)
            sizes.append(lane.database.value(f"SELECT pg_total_relation_size('{buffer}')::int8"))
    assert max(sizes) <= 2.5 * sizes[0], sizes


def test_a_buffer_is_emptied_beside_a_publication_of_all_tables(lane: Lane) -> None:
    lane.database.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    lane.database.execute("UPDATE t SET v = 'published'")
    equal(lane)
    buffer = f"wal2lake_changes.changes_{next(iter(lane.rows))}"
    assert lane.database.value(f"SELECT count(*) FROM {buffer}") == 0


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_writers_beside_drains_and_crashes(make: Callable[..., Lane], seed: int) -> None:
    lane = make(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int); CREATE TABLE keyless (a int, b text);"
        "INSERT INTO t SELECT i, 'v', i FROM generate_series(1, 50) AS i"
    )
    stop = threading.Event()
    failed: list[BaseException] = []

    def work(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        try:
            with psycopg.connect(lane.database.dsn) as session:
                while not stop.is_set():
                    one_transaction(session, chance)
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for writer in writers:
        writer.start()
    chance = random.Random(seed)
    drains = 0
    try:
        while drains < 60:
            with lane.open() as stream:
                for _ in range(chance.randrange(1, 8)):
                    if lane.drain(stream):
                        drains += 1
                        lane.check("t", "keyless")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert failed == []
    equal(lane, "t", "keyless")


def one_transaction(session: psycopg.Connection[object], chance: random.Random) -> None:
    """Some statements, now and then with a savepoint, a pause, a truncation or a rollback."""
    try:
        for _ in range(chance.randrange(1, 5)):
            id, other = chance.randrange(80), chance.randrange(80)
            session.execute(
                chance.choice(
                    [
                        f"INSERT INTO t VALUES ({id}, 'i', {other}) ON CONFLICT (id) DO UPDATE SET v = t.v || 'u'",
                        f"UPDATE t SET n = n + 1 WHERE id BETWEEN {id} AND {id + 5}",
                        f"DELETE FROM t WHERE id = {id}",
                        f"UPDATE t SET id = {id} + 1000 - id WHERE id IN ({id}, {1000 - id})",
                        f"INSERT INTO keyless SELECT i % 3, 'k' FROM generate_series(1, {other}) AS i",
                        "DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless LIMIT 20)",
                        f"SAVEPOINT s; DELETE FROM t WHERE id < {id}; ROLLBACK TO s",
                    ]
                ).encode()
            )
        if chance.random() < 0.02:
            session.execute(b"TRUNCATE keyless")
        if chance.random() < 0.1:
            session.execute(b"SELECT pg_sleep(0.05)")
        if chance.random() < 0.2:
            session.rollback()
        else:
            session.commit()
    except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
        session.rollback()


def test_what_is_written_to_a_detached_partition_is_not_of_the_table(make: Callable[..., Lane]) -> None:
    lane = make(
        "CREATE TABLE t (k int, v text) PARTITION BY RANGE (k);"
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20); INSERT INTO t VALUES (1, 'a'), (11, 'a')"
    )
    database = lane.database
    database.execute("INSERT INTO high VALUES (12, 'b')")
    equal(lane)
    before = lane.held("t")
    database.execute("ALTER TABLE t DETACH PARTITION high; INSERT INTO high VALUES (13, 'c'); DELETE FROM high")
    with lane.open() as stream:
        while lane.drain(stream):
            pass
    # The rows that it had are deleted with the partition, by whoever follows the catalog.
    assert lane.held("t") == before
    of_high = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'high'::regclass AND tgname LIKE 'wal2lake%'"
    with connect(lane.config.source) as conn:
        tidy(conn, lane.source.slot_name)
    assert database.value(of_high) == 0
