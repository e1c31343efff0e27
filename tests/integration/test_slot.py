"""Slots and their snapshots, publications, and connections that can't be made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from servers import Database, fresh_database
from waiting import wait_until
from wal2lake.config import SourceConfig
from wal2lake.errors import ConnectionFailed, SlotInUse, SourceBusy, SourceError, SourceRefused
from wal2lake.schema import TableId
from wal2lake.source import connect, jdbc, server_facts
from wal2lake.source.publishing import contents, publication, slot
from wal2lake.source.publishing import slot as slots
from wal2lake.source.sessions.locking import Patience

SLOT = "wal2lake_made"
PASSWORD = "hush-hush"


@pytest.fixture
def source(database: Database) -> SourceConfig:
    return SourceConfig(dsn=database.dsn)


@pytest.fixture
def plain_role(database: Database) -> Iterator[str]:
    """A role that may log in and no more."""
    role = f"plain_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    yield role
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def as_role(database: Database, role: str) -> SourceConfig:
    return SourceConfig(dsn=psycopg.conninfo.make_conninfo(database.dsn, user=role, password=PASSWORD))


def test_a_snapshot_can_be_read_while_it_is_held_and_not_after(source: SourceConfig, database: Database) -> None:
    database.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
    held = slot.create(source, SLOT, "g")
    database.execute("INSERT INTO t VALUES (2)")
    statement = f"SET TRANSACTION SNAPSHOT '{held.snapshot.name}'".encode()
    with database.connect(autocommit=False) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(statement)
        assert reader.execute("SELECT id FROM t").fetchall() == [(1,)]
    assert held.alive
    held.close()
    wait_until(lambda: not held.alive, 1, "a closed snapshot to be dead")
    with database.connect(autocommit=False) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.Error):
            reader.execute(statement)


def test_a_snapshot_whose_server_process_ended_is_not_alive(source: SourceConfig, database: Database) -> None:
    with slot.create(source, SLOT, "g", temporary=True) as held:
        database.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        )
        wait_until(lambda: not held.alive, 10, "the end to be noticed")


def test_info_says_where_the_slot_is_and_none_where_there_is_none(source: SourceConfig, database: Database) -> None:
    with slot.create(source, SLOT, "g") as held, connect(source) as conn:
        info = slot.info(conn, SLOT)
        assert info is not None and info.confirmed_flush_lsn == held.snapshot.lsn
        assert (info.plugin, info.database, info.temporary, info.lost) == ("pgoutput", database.name, False, None)
        assert slot.info(conn, "wal2lake_none") is None


def test_a_temporary_slot_goes_with_its_connection(source: SourceConfig) -> None:
    with connect(source) as conn:
        with slot.create(source, SLOT, "g", temporary=True):
            assert slot.info(conn, SLOT) is not None
        wait_until(lambda: slot.info(conn, SLOT) is None, 10, "the slot to go")


def test_a_slot_that_exists_is_refused(source: SourceConfig) -> None:
    slot.create(source, SLOT, "g").close()
    with pytest.raises(SourceRefused) as raised:
        slot.create(source, SLOT, "g")
    assert "already exists" in str(raised.value) and "pg_drop_replication_slot" in raised.value.remedy


def test_waiting_for_an_open_transaction_names_who_is_in_the_way(
    source: SourceConfig, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "WAIT_REPORT_SECONDS", 0.2)
    writer = database.connect(autocommit=False)
    writer.execute("CREATE TABLE t (id int)")
    named: list[str] = []

    def told(error: SourceError) -> None:
        named.extend((str(error), error.remedy))
        writer.commit()

    slot.create(source, SLOT, "g", patience=Patience(on_wait=told)).close()
    pid = writer.info.backend_pid
    assert f"server process {pid} (unnamed on {database.name})" in named[0]
    assert f"pg_terminate_backend({pid})" in named[1]


def test_a_wait_for_an_open_transaction_that_is_given_up_leaves_no_slot(
    source: SourceConfig, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "WAIT_REPORT_SECONDS", 0.2)
    told = threading.Event()
    with database.connect(autocommit=False) as writer, connect(source) as conn:
        writer.execute("CREATE TABLE t (id int)")
        with pytest.raises(SourceBusy, match=f"server process {writer.info.backend_pid} "):
            slot.create(source, SLOT, "g", patience=Patience(told.is_set, lambda _: told.set()))
        assert slot.info(conn, SLOT) is None


def test_drop_waits_for_the_reader_and_gives_up_with_its_name(source: SourceConfig, database: Database) -> None:
    with connect(source) as conn:
        with slot.create(source, SLOT, "g", temporary=True), pytest.raises(SlotInUse) as raised:
            slot.drop(conn, SLOT, timeout=0.2)
        assert raised.value.fields["holder"] == "wal2lake g"
        slot.create(source, "wal2lake_other", "g").close()
        assert slot.drop(conn, "wal2lake_other")
        assert not slot.drop(conn, "wal2lake_other")


def test_a_prepared_transaction_that_a_slot_waits_for_is_named_with_what_ends_it(
    source: SourceConfig, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "WAIT_REPORT_SECONDS", 0.1)
    gid = f"it's {{{database.name}}}"
    with database.connect(autocommit=False) as writer:
        writer.execute("CREATE TABLE t (id int)")
        writer.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
    told: list[SourceError] = []

    def end_it(error: SourceError) -> None:
        told.append(error)
        database.execute(error.remedy.partition("as in: ")[2])

    with slot.create(source, SLOT, "g", temporary=True, patience=Patience(on_wait=end_it)) as held:
        assert held.alive
    assert f"prepared transaction 'it''s {{{database.name}}}' in database {database.name}" in str(told[0])


def test_the_error_of_a_role_without_replication_names_the_grant(database: Database, plain_role: str) -> None:
    with pytest.raises((SourceRefused, ConnectionFailed)) as raised:
        slot.create(as_role(database, plain_role), SLOT, "g")
    assert "REPLICATION" in raised.value.remedy


def test_the_publication_is_altered_to_exactly_the_desired_tables(source: SourceConfig, database: Database) -> None:
    database.execute('CREATE TABLE a (id int); CREATE TABLE "B c" (id int); CREATE TABLE p (id int)'
                     " PARTITION BY LIST (id); CREATE TABLE child () INHERITS (a)")  # fmt: skip
    ids = {name: (database.value("SELECT %s::regclass::oid::int8", [name]), TableId("public", name.strip('"')))
           for name in ("a", '"B c"', "p", "child")}  # fmt: skip

    def published() -> set[str]:
        return {row[0] for row in database.rows(
            "SELECT relname FROM pg_publication_rel JOIN pg_class c ON c.oid = prrelid"
        )}  # fmt: skip

    with connect(source) as conn:
        assert publication.ensure(conn, "wal2lake_g", [ids["a"]])
        assert published() == {"a"}
        assert not publication.ensure(conn, "wal2lake_g", [ids["a"]])
        assert publication.ensure(conn, "wal2lake_g", [ids['"B c"'], ids["p"]])
        assert published() == {"B c", "p"}
        database.execute("ALTER PUBLICATION wal2lake_g SET (publish = 'insert', publish_via_partition_root = true)")
        if conn.info.server_version >= 150000:
            database.execute('ALTER PUBLICATION wal2lake_g SET TABLE p, "B c" (id) WHERE (id > 3)')
        assert publication.ensure(conn, "wal2lake_g", [ids['"B c"'], ids["p"]])
        assert not publication.ensure(conn, "wal2lake_g", [ids['"B c"'], ids["p"]])
        assert database.rows("SELECT pubdelete, pubviaroot FROM pg_publication") == [(True, False)]
        assert publication.ensure(conn, "wal2lake_g", [])
        assert published() == set()
        publication.drop(conn, "wal2lake_g")
        assert not contents.exists(conn, "wal2lake_g")


def test_a_table_of_another_owner_is_refused_with_the_grant(database: Database, plain_role: str) -> None:
    database.execute("CREATE TABLE theirs (id int)")
    wanted = [(database.value("SELECT 'theirs'::regclass::oid::int8"), TableId("public", "theirs"))]
    with connect(as_role(database, plain_role)) as conn:
        with pytest.raises(SourceRefused) as raised:
            publication.ensure(conn, "wal2lake_g", wanted)
        assert "GRANT CREATE ON DATABASE" in raised.value.remedy
        database.execute(f'GRANT CREATE ON DATABASE "{database.name}" TO {plain_role}')
        assert publication.ensure(conn, "wal2lake_g", [])
        with pytest.raises(SourceRefused) as raised:
            publication.ensure(conn, "wal2lake_g", wanted)
        assert "OWNER TO" in raised.value.remedy
        database.execute(f"ALTER TABLE theirs OWNER TO {plain_role}")
        assert publication.ensure(conn, "wal2lake_g", wanted)


def test_facts_are_readable_for_a_plain_role(database: Database, plain_role: str) -> None:
    with connect(as_role(database, plain_role)) as conn:
        facts = server_facts(conn)
    assert (facts.superuser, facts.may_replicate, facts.may_create_in_database) == (False, False, False)
    assert (facts.wal_level, facts.database, facts.role, facts.timeline) == ("logical", database.name, plain_role, 1)
    assert facts.version >= 140000 and facts.slots_max > facts.slots_used >= 0 and facts.wal_end > 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"dbname": "no such database"}, 'database "no such database" does not exist'),
        ({"user": "nobody_here", "password": PASSWORD}, 'password authentication failed for user "nobody_here"'),
        ({"port": "1"}, "refused"),
        ({"host": "no-such-host.invalid"}, "no-such-host.invalid"),
    ],
)
def test_a_connection_that_fails_says_why_and_hides_the_password(
    database: Database, change: dict[str, str], told: str
) -> None:
    source = SourceConfig(dsn=psycopg.conninfo.make_conninfo(database.dsn, **change))
    password = psycopg.conninfo.conninfo_to_dict(source.dsn.get_secret_value()).get("password", PASSWORD)
    attempts: list[Callable[[], object]] = [lambda: connect(source), lambda: slot.create(source, SLOT, "g")]
    for attempt in attempts:
        with pytest.raises(ConnectionFailed) as raised:
            attempt()
        assert told in str(raised.value)
        assert str(password) not in str(raised.value) + raised.value.remedy


def test_jdbc_gets_the_effective_parameters_and_no_password_in_the_url(
    database: Database, plain_role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    given = psycopg.conninfo.conninfo_to_dict(database.dsn)
    dsn = psycopg.conninfo.make_conninfo("", host=given["host"], port=given["port"], dbname=given["dbname"],
                                         user=plain_role)  # fmt: skip
    url, properties = jdbc(SourceConfig(dsn=dsn))
    assert url.startswith("jdbc:postgresql://127.0.0.1:") and url.endswith("/" + database.name)
    assert PASSWORD not in url and properties["password"] == PASSWORD and properties["user"] == plain_role


def test_a_slot_of_another_database_is_never_dropped(source: SourceConfig, database: Database) -> None:
    with fresh_database(database.server) as other:
        other.rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"{SLOT}_elsewhere"])
        with connect(source) as conn, pytest.raises(SourceRefused) as raised:
            slot.drop(conn, f"{SLOT}_elsewhere")
        assert other.name in str(raised.value)
        assert other.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", [f"{SLOT}_elsewhere"]) == 1
