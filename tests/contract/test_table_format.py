"""What a table format must do, for Iceberg and for the one in memory: commits, staged commits, columns, names, files."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lake_history import History, Row, copied, multiset, source_id
from memory_tables import MemoryTables
from servers import Database, fresh_database
from wal2lake.config import Config
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import CommitFailed
from wal2lake.lake import Lake
from wal2lake.lake.format import Merge, Record, Rewrite, TableFormat
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.lake.model import Facts
from wal2lake.position import LakeVersion, Lsn
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType
from wal2lake.visibility import Visibility

_names = itertools.count(1)
ID = Column("id", 20, -1, "bigint", LakeType.parse("long"), attnum=1)
TEXT = Column("a `b` c", 25, -1, "text", LakeType.parse("string"), attnum=2)
NUMBER = Column("n", 23, -1, "integer", LakeType.parse("int"), attnum=3)
SOURCE = "7000000000000000000/5/7"


def at(position: int, commit: int = 0, visibility: Visibility | None = None) -> Record:
    return Record(Lsn(position), position // 10, 3, LakeVersion(1, commit or position), visibility)


@dataclass
class Table:
    """A table of three rows, made at position 10."""

    tables: TableFormat
    spark: Any
    schema: TableSchema

    @property
    def id(self) -> TableId:
        return self.schema.id

    @property
    def rows(self) -> Counter[Any]:
        with self.session() as session:
            names = ", ".join(f"`{column.name.replace('`', '``')}`" for column in self.schema.columns)
            return Counter(map(tuple, session.sql(f"SELECT {names} FROM {self.tables.sql_name(self.id)}").collect()))

    @contextmanager
    def session(self, record: Record | None = None, staged: str | None = None) -> Iterator[Any]:
        session = self.spark.newSession()
        settings = {**self.tables.settings(), **(self.tables.commit_settings(record, staged) if record else {})}
        for name, value in settings.items():
            session.conf.set(name, value)
        yield session

    def create(self, *rows: tuple[Any, ...], record: Record | None = None) -> None:
        with self.session(record or at(10)) as session:
            self.tables.create(
                session, self.frame(session, *rows), self.schema, SOURCE, self.tables.new_location(self.id)
            )

    def frame(self, session: Any, *rows: tuple[Any, ...]) -> Any:
        columns = ", ".join(f"`{c.name.replace('`', '``')}` {c.lake.spark}" for c in self.schema.columns)
        return session.createDataFrame(list(rows), columns)

    def append(self, record: Record, *rows: tuple[Any, ...], staged: str | None = None) -> None:
        with self.session(record, staged) as session:
            self.tables.append(session, self.frame(session, *rows), self.id)

    def found(self) -> Any:
        with self.session() as session:
            return self.tables.find(session, self.id)

    def stage(self) -> str:
        found = self.found()
        with self.session() as session:
            self.tables.stage(session, self.id, found)
        return self.tables.new_stage()


@pytest.fixture(scope="module", params=["iceberg", "memory"])
def tables(request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> TableFormat:
    path = tmp_path_factory.mktemp("format") / "lake"
    path.mkdir()
    if request.param == "memory":
        return MemoryTables()
    return IcebergTables(Config(source={"dsn": "postgresql://unused"}, lake={"path": str(path)}))


@pytest.fixture
def table(tables: TableFormat, spark: Any) -> Table:
    schema = TableSchema(7, TableId("public", f"t{next(_names)}"), (ID, TEXT), ("id",), ReplicaIdentity.DEFAULT)
    made = Table(tables, spark, schema)
    made.create((1, "a"), (2, None), (3, "a"))
    return made


def test_a_table_is_found_with_its_record_as_soon_as_it_is_made(table: Table) -> None:
    found = table.found()
    assert (found.source, found.schema, found.record, found.rows) == (SOURCE, table.schema, at(10), 3)
    assert table.rows == {(1, "a"): 1, (2, None): 1, (3, "a"): 1}
    again = table.tables.find_without_session(table.id)
    assert again is not None and (again.record, again.rows, again.schema) == (at(10), 3, table.schema)


def test_a_name_is_given_once(table: Table) -> None:
    with pytest.raises(Exception, match=r"(?i)exists"):
        table.create((9, "z"))
    assert table.found().rows == 3


def test_what_does_not_exist_is_not_found_and_is_dropped_without_an_error(table: Table) -> None:
    missing = TableId("public", "missing")
    with table.session() as session:
        assert table.tables.find(session, missing) is None
        assert (table.tables.files(session, missing), table.tables.facts(session, missing)) == (frozenset(), Facts())
        table.tables.drop(session, missing)


def test_rows_and_record_are_in_one_commit(table: Table) -> None:
    seen = Visibility.of("700:705:702", Lsn(90))
    table.append(at(20, visibility=seen), (4, "d"))
    assert (table.found().record, table.found().rows) == (at(20, visibility=seen), 4)
    with table.session(at(30)) as session:
        table.tables.overwrite(session, table.frame(session, (7, "x")), table.id)
    assert table.found().record == at(30) and table.rows == {(7, "x"): 1}


MERGE = Merge(
    "SELECT * FROM VALUES ('U', 1L, 'new'), ('D', 2L, NULL), ('U', 4L, 'four'), ('D', 5L, NULL) AS v(op, k0, c1)",
    "t.`id` = s.k0",
    (
        "WHEN MATCHED AND s.op = 'D' THEN DELETE",
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.k0, t.`a ``b`` c` = s.c1",
        "WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT (`id`, `a ``b`` c`) VALUES (s.k0, s.c1)",
    ),
)


def test_a_merge_updates_deletes_and_inserts_in_one_commit(table: Table) -> None:
    with table.session(at(20)) as session:
        table.tables.merge(session, table.id, MERGE)
    assert table.found().record == at(20) and table.rows == {(1, "new"): 1, (3, "a"): 1, (4, "four"): 1}


def test_a_merge_deletes_rows_that_the_query_does_not_have(table: Table) -> None:
    gone = replace(MERGE, clauses=(*MERGE.clauses, "WHEN NOT MATCHED BY SOURCE AND (t.`id` > 2) THEN DELETE"))
    with table.session(at(20)) as session:
        table.tables.merge(session, table.id, gone)
    assert table.rows == {(1, "new"): 1, (4, "four"): 1}


def test_two_rows_of_a_merge_for_one_row_of_the_table_fail_it(table: Table) -> None:
    twice = replace(MERGE, source="SELECT * FROM VALUES ('U', 1L, 'x'), ('U', 1L, 'y') AS v(op, k0, c1)")
    with table.session(at(20)) as session, pytest.raises(Exception, match=r"(?i)match"):
        table.tables.merge(session, table.id, twice)
    assert (table.found().record, table.found().rows) == (at(10), 3)


def test_an_address_is_that_of_one_stored_row(table: Table) -> None:
    table.append(at(20), (3, "a"))
    file, place = table.tables.row_address
    rows = f"SELECT {file} AS file, {place} AS position FROM {table.tables.sql_name(table.id)} WHERE id = 3 LIMIT 1"
    with table.session() as session:
        row = session.sql(rows).first()
    merge = Merge(
        f"SELECT '{row[0]}' AS file, {row[1]}L AS position", f"t.{file} = s.file AND t.{place} = s.position",
        ("WHEN MATCHED THEN DELETE",),
    )  # fmt: skip
    with table.session(at(30)) as session:
        table.tables.merge(session, table.id, merge)
    assert table.rows == {(1, "a"): 1, (2, None): 1, (3, "a"): 1}


def test_a_staged_commit_is_seen_when_it_is_published(table: Table) -> None:
    staged = table.stage()
    table.append(at(20), (4, "d"), (5, "e"), staged=staged)
    assert (table.found().record, table.found().rows) == (at(10), 3)
    with table.session() as session:
        assert table.tables.gained(session, table.id, staged) == 2
        published = table.tables.publish(session, table.id, staged, at(10))
    assert (published.record, published.rows) == (at(20), 5) and table.found().rows == 5


def test_a_staged_commit_is_published_only_on_the_version_that_it_was_made_from(table: Table) -> None:
    late, other = table.stage(), table.stage()
    table.append(at(20), (4, "d"), staged=late)
    with table.session() as session:
        with pytest.raises(CommitFailed):
            table.tables.publish(session, table.id, other, at(10))
        with pytest.raises(CommitFailed):
            table.tables.publish(session, table.id, late, at(9))
    table.append(at(15), (9, "i"))
    with table.session() as session, pytest.raises(CommitFailed):
        table.tables.publish(session, table.id, late, at(15))
    assert (table.found().record, table.found().rows) == (at(15), 4)


def test_a_table_is_replaced_with_other_columns(table: Table) -> None:
    before, table.schema = table.schema, replace(table.schema, columns=(ID, NUMBER))
    with table.session(at(20)) as session, pytest.raises(CommitFailed):
        table.tables.replace(session, table.frame(session, (1, 5)), table.schema, SOURCE, at(9))
    assert table.found().schema == before
    with table.session(at(20)) as session:
        table.tables.replace(session, table.frame(session, (1, 5)), table.schema, "another", at(10))
    found = table.found()
    assert (found.source, found.schema, found.record, found.rows) == ("another", table.schema, at(20), 1)
    assert table.rows == {(1, 5): 1}


def test_columns_change_without_a_change_of_rows(table: Table) -> None:
    after = replace(table.schema, columns=(ID, replace(TEXT, name="text"), NUMBER))
    with table.session() as session:
        with pytest.raises(CommitFailed):
            table.tables.evolve(session, table.schema, after, at(9))
        table.tables.evolve(session, table.schema, after, at(10))
    table.schema = after
    assert (table.found().schema, table.found().record) == (after, at(10))
    assert table.rows == {(1, "a", None): 1, (2, None, None): 1, (3, "a", None): 1}


def test_a_record_is_committed_without_a_change_of_rows(table: Table) -> None:
    with table.session() as session:
        with pytest.raises(CommitFailed):
            table.tables.restate(session, table.id, at(20), at(9))
        table.tables.restate(session, table.id, at(20), at(10))
        table.tables.note_record(session, table.id)
    assert (table.found().record, table.found().rows) == (at(20), 3)


def test_a_table_gets_another_name_and_description_and_keeps_its_version(table: Table) -> None:
    new = TableId("other", f"{table.id.name} `x`.y")
    described = replace(table.schema, id=new, version=4)
    with table.session() as session:
        table.tables.rename(session, table.id, new)
        assert table.tables.find(session, table.id) is None
        with pytest.raises(CommitFailed):
            table.tables.describe(session, new, described, "else", at(9))
        table.tables.describe(session, new, described, "else", at(10))
        found = table.tables.find(session, new)
        assert found is not None
        assert (found.source, found.schema, found.record, found.rows) == ("else", described, at(10), 3)
        table.tables.drop(session, new)
        assert table.tables.find(session, new) is None


def test_maintenance_changes_neither_rows_nor_record(table: Table) -> None:
    table.append(at(20), (4, "d"))
    rows = table.rows
    with table.session() as session:
        files = table.tables.data_files(session, table.id)
        assert sum(file.records - file.deleted for file in files) == 4
        many = Rewrite(1 << 19, 1.0, 1 << 20, True)
        table.tables.compact(session, table.id, many, 1 << 30, at(20))
        assert len(table.tables.data_files(session, table.id)) == 1
        before = table.tables.facts(session, table.id)
        table.tables.expire(session, table.id, 1, before.newest + 3600, at(20))
        assert table.tables.facts(session, table.id).snapshots <= min(2, before.snapshots)
        assert table.tables.remove_orphans(session, table.id, 0.0) == 0
        assert table.tables.files(session, table.id)
    assert (table.found().record, table.found().rows, table.rows) == (at(20), 4, rows)


def test_no_location_is_given_twice(table: Table) -> None:
    assert table.tables.new_location(table.id) != table.tables.new_location(table.id)


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_the_lake_needs_nothing_of_a_format_but_the_port(
    key: str, server: EmbeddedServer, spark: Any, tmp_path: Any
) -> None:
    """Copies, applies, follows columns, renames and drops, in a lake whose tables are in memory."""
    with fresh_database(server) as database:
        assert_mirrors(key, database, MemoryTables(), spark, tmp_path)


def assert_mirrors(key: str, database: Database, tables: MemoryTables, spark: Any, path: Any) -> None:
    database.execute(f"CREATE TABLE t (id bigint {key}, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL)")
    if not key:
        database.execute("ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (3, NULL)")
    lake = Lake(Config(source={"dsn": database.dsn}, lake={"path": str(path)}), spark, tables=tables)
    lake.start()
    try:
        applied = copied(lake, database, "t")
        rows: list[Row] = tables.rows(applied.schema.id)
        history, source = History(applied.schema, path / "segments", rows), source_id(applied.schema)
        history.lsn = applied.lsn + 1000
        history.insert({"id": 4, "v": "d"})
        history.update({"id": 1, "v": "a"}, {"id": 1, "v": "new"})
        history.delete({"id": 3, "v": None})
        copy, batch = applied, history.batch(1)
        applied = lake.apply(copy, batch, source)
        assert multiset(tables.rows(applied.schema.id)) == multiset(history.rows) and applied.rows == len(history.rows)
        assert lake.apply(copy, batch, source) == applied, "a batch is applied once"
        after = replace(applied.schema, columns=(*applied.schema.columns, replace(NUMBER, attnum=3)))
        applied = lake.evolve(applied, after, source)
        moved = lake.rename(source, [applied.schema.id], TableId("public", "u"))
        assert moved is not None and moved.lsn == applied.lsn
        assert multiset(tables.rows(moved.schema.id)) == multiset({**row, "n": None} for row in history.rows)
        assert lake.due(moved) is None
        lake.drop(moved.schema.id, source)
        assert lake.applied(moved.schema.id, source) is None
    finally:
        lake.stop()
