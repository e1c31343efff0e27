"""Applying batches: a lake table has the rows of the source at the end of the batch, in every format."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lake_history import History, Row, copied, multiset, read_lake, source_id
from servers import Database, fresh_database
from wal2lake.config import Config
from wal2lake.demo.server import EmbeddedServer
from wal2lake.errors import CommitFailed, CopyNeeded, LakeError, TableError
from wal2lake.lake import Applied, Lake
from wal2lake.lake.applying import collapse, key_pruning
from wal2lake.position import Lsn

_names = itertools.count(1)


@pytest.fixture(scope="module")
def place(
    server: EmbeddedServer, spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lake, Database, Path]]:
    path = tmp_path_factory.mktemp("contract") / "lake"
    with fresh_database(server) as database:
        lake = Lake(Config(source={"dsn": database.dsn}, lake={"path": str(path)}), spark)
        lake.start()
        yield lake, database, path
        lake.stop()


class Mirrored:
    """A table of the source, its copy in the lake, and what happens to it."""

    def __init__(
        self, lake: Lake, database: Database, path: Path, columns: str, rows: list[Row], tail: str = ""
    ) -> None:
        self.lake, self.database, self.path = lake, database, path
        self.name = f"t{next(_names)}"
        database.execute(f"CREATE TABLE {self.name} ({columns}) {tail.replace('{t}', self.name)}")
        if "PRIMARY KEY" not in columns and not tail:
            database.execute(f"ALTER TABLE {self.name} REPLICA IDENTITY FULL")
        self.insert(rows)
        self.applied: Applied = copied(lake, database, self.name)
        self.history = History(
            self.applied.schema, path / "_wal2lake" / "test segments [x]*", [dict(row) for row in rows]
        )
        self.history.lsn = self.applied.lsn + 1000

    def insert(self, rows: list[Row]) -> None:
        for row in rows:
            names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("%s" for _ in row)
            self.database.execute(f"INSERT INTO {self.name} ({names}) VALUES ({marks})", list(row.values()))

    def flush(self, **options: Any) -> None:
        """Apply what happened since the last flush and compare."""
        batch = self.history.batch(self.applied.manifest + 1, **options)
        before = self.applied
        self.applied = self.lake.apply(before, batch, source_id(before.schema))
        assert (self.applied.lsn, self.applied.manifest) == (batch.to_lsn, batch.to_manifest)
        assert self.applied.changes == before.changes + batch.changes
        self.history.assert_in(self.path)
        assert self.applied.rows == len(self.history.rows)


MakeTable = Callable[..., Mirrored]
KEYED = "id bigint PRIMARY KEY, v text, n int"


@pytest.fixture
def table(place: tuple[Lake, Database, Path]) -> MakeTable:
    def make(columns: str = KEYED, rows: list[Row] | None = None, tail: str = "") -> Mirrored:
        return Mirrored(*place, columns, rows if rows is not None else [row(i) for i in range(1, 6)], tail)

    return make


def row(id: int, v: str | None = "v", n: int | None = 1) -> Row:
    return {"id": id, "v": v, "n": n}


def test_inserts_are_appended_in_one_commit(table: MakeTable) -> None:
    t = table()
    for i in range(10, 40):
        t.history.insert(row(i, None))
    t.flush(files=3)


def test_a_table_has_no_files_but_its_own(table: MakeTable) -> None:
    t = table("id int PRIMARY KEY, v text", rows=[{"id": 1, "v": "a"}])
    t.history.update({"id": 1, "v": "a"}, {"id": 1, "v": "b"})
    t.flush()
    made = [path.suffix for path in (t.path / "public").rglob("*") if path.is_file()]
    assert ".parquet" in made and set(made) <= {".parquet", ".puffin", ".avro", ".json"}


def test_inserts_updates_and_deletes_of_different_keys(table: MakeTable) -> None:
    t = table()
    t.history.insert(row(10))
    t.history.update(row(1), row(1, "new", None))
    t.history.delete(row(2))
    t.flush()
    t.history.update(row(10), row(10, ""))
    t.flush()
    t.history.delete(row(3))
    t.flush()


def test_only_the_last_change_of_a_key_counts(table: MakeTable) -> None:
    t = table()
    for n in range(2, 9):
        t.history.update(row(1, n=n - 1), row(1, n=n))
    t.history.delete(row(2))
    t.history.insert(row(2, "again"))
    t.history.insert(row(20))
    t.history.delete(row(20))
    t.history.update(row(3), row(3, "soon gone"))
    t.history.delete(row(3, "soon gone"))
    t.history.insert(row(21))
    t.history.update(row(21), row(21, "updated"))
    t.flush(files=4)


def test_update_that_changes_the_key_moves_the_row(table: MakeTable) -> None:
    t = table()
    t.history.update(row(1), row(100))
    t.history.update(row(2), row(1, "now one"))
    t.history.update(row(100), row(101, "moved twice"))
    t.flush()


def test_keys_that_swap_between_rows(table: MakeTable) -> None:
    t = table(rows=[row(1, "one"), row(2, "two")])
    t.history.update(row(1, "one"), row(3, "one"))
    t.history.update(row(2, "two"), row(1, "two"))
    t.history.update(row(3, "one"), row(2, "one"))
    t.flush()


def test_unchanged_toast_is_kept_from_the_lake_or_an_earlier_change(table: MakeTable) -> None:
    t = table(rows=[row(1, "stored"), row(2, None), row(3, "stored too")])
    t.history.update(row(1, "stored"), row(1, "stored", 2), unchanged=["v"])
    t.history.update(row(2, None), row(2, "big", 2))
    t.history.update(row(2, "big", 2), row(2, "big", 3), unchanged=["v"])
    t.history.insert(row(4, "inserted"))
    t.history.update(row(4, "inserted"), row(4, "inserted", 9), unchanged=["v"])
    t.history.update(row(3, "stored too"), row(3, "stored too", 5), unchanged=["v"])
    t.history.delete(row(3, "stored too", 5))
    t.history.insert(row(3, None, 6))
    t.history.update(row(3, None, 6), row(3, None, 7), unchanged=["v"])
    t.flush(files=2)


def test_unchanged_toast_follows_the_row_through_changes_of_its_key(table: MakeTable) -> None:
    t = table(rows=[row(1, "one"), row(2, "two"), row(3, "three")])
    t.history.update(row(1, "one"), row(10, "one"), unchanged=["v"])
    t.history.update(row(10, "one"), row(11, "one", 2), unchanged=["v"])
    t.history.update(row(11, "one", 2), row(11, "one", 3), unchanged=["v"])
    t.history.update(row(2, "two"), row(1, "two"), unchanged=["v"])
    t.history.update(row(3, "three"), row(3, "changed"))
    t.history.update(row(3, "changed"), row(2, "changed"), unchanged=["v"])
    t.history.insert(row(3, "fresh"))
    t.history.update(row(3, "fresh"), row(30, "fresh"), unchanged=["v"])
    t.history.update(row(30, "fresh"), row(3, "fresh"), unchanged=["v"])
    t.history.update(row(11, "one", 3), row(10, "one", 3), unchanged=["v"])
    t.flush()


def test_unchanged_toast_of_swapped_keys(table: MakeTable) -> None:
    t = table(rows=[row(1, "one"), row(2, "two")])
    t.history.update(row(1, "one"), row(3, "one"), unchanged=["v"])
    t.history.update(row(2, "two"), row(1, "two"), unchanged=["v"])
    t.history.update(row(3, "one"), row(2, "one"), unchanged=["v"])
    t.flush()


def test_unchanged_value_that_is_nowhere_is_refused_and_nothing_is_committed(table: MakeTable) -> None:
    t = table(rows=[row(1, "one")])
    t.history.rows.append(row(9, "x"))
    t.history.update(row(9, "x"), row(9, "x", 2), unchanged=["v"])
    batch = t.history.batch(1)
    with pytest.raises(LakeError, match="lacks rows"):
        t.lake.apply(t.applied, batch, source_id(t.applied.schema))
    assert t.lake.applied(t.applied.schema.id, source_id(t.applied.schema)) == t.applied


def test_truncate_leaves_only_what_came_after(table: MakeTable) -> None:
    t = table()
    t.history.insert(row(50))
    t.history.update(row(1), row(1, "x"))
    t.history.truncate()
    t.history.insert(row(1, "after"))
    t.history.update(row(1, "after"), row(1, "after", 2), unchanged=["v"])
    t.history.insert(row(2, "after"))
    t.history.delete(row(2, "after"))
    t.history.insert(row(3))
    t.flush()
    t.history.insert(row(7))
    t.history.truncate()
    t.flush()
    t.history.truncate()
    t.flush()
    t.history.truncate()
    t.history.insert(row(8))
    t.flush()


def test_changes_below_the_position_of_the_copy_are_skipped(table: MakeTable) -> None:
    t = table()
    rows = [dict(one) for one in t.history.rows]
    t.history.truncate()
    t.history.insert(row(70))
    t.history.delete(row(70))
    t.history.lsn += 100
    skip = Lsn(t.history.lsn)
    t.history.rows = rows
    t.history.lsn, t.history.seq = skip, 0
    t.history.insert(row(71))
    t.history.delete(row(1))
    t.flush(skip_before=skip)


@pytest.mark.parametrize(
    ("type", "keys"),
    [
        ("double precision", [float("nan"), 0.0, -0.0, float("inf"), 1e-300]),
        ("bytea", [b"", b"\x00", b"\x00\x01", b"\xff", b"a"]),
        ("numeric(38,5)", [Decimal("0"), Decimal("-1.00001"), Decimal("99999999999999999.5"), Decimal("2"), Decimal("3")]),
        ("timestamptz", ["2024-03-31 00:59:59.999999+00", "2024-03-31 01:00+00", "0001-01-01 00:00+00", "9999-12-31 23:59:59+00", "2024-10-27 01:30+00"]),
        ("text", ["", " ", "a", "A", "ä"]),
        ("boolean", [True, False]),
        ("int[]", [[], [1], [1, 2], [2], [None]]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_keys_of_each_kind_find_their_rows(table: MakeTable, type: str, keys: list[Any]) -> None:
    if type == "double precision":
        keys = [key for key in keys if str(key) != "-0.0"]
    t = table(f"k {type}, part int, v text, PRIMARY KEY (k, part)", rows=[])
    t.insert([{"k": key, "part": 1, "v": "old"} for key in keys])
    t.applied = copied(t.lake, t.database, t.name)
    t.history.rows = read_lake(t.path, t.applied.schema.id)
    stored = dict(enumerate(t.history.rows))
    assert len(stored) == len(keys)
    for i, one in stored.items():
        if i % 2 == 0 or one["k"] == 0.0:
            t.history.update(one, {**one, "v": "new"})
        else:
            t.history.delete(one)
    t.history.insert({**stored[0], "part": 2})
    if type == "double precision":
        zero = next(one for one in t.history.rows if str(one["k"]) == "0.0")
        t.history.update(zero, {**zero, "k": -0.0})
    t.flush()


FULL = "a int, b text, f double precision, l text[], y bytea"


def full(a: int | None, b: str | None = "b", f: float | None = 0.0, **others: Any) -> Row:
    return {"a": a, "b": b, "f": f, "l": None, "y": b"y", **others}


def test_rows_without_a_key_are_matched_whole_and_as_often_as_they_are(table: MakeTable) -> None:
    twins = (
        [full(1)] * 4 + [full(None, None, None, y=None)] * 2 + [full(2, f=-0.0), full(2, f=0.0), full(3, l=["x", None])]
    )
    t = table(FULL, twins)
    t.history.delete(full(1))
    t.history.delete(full(1))
    t.history.delete(full(None, None, None, y=None))
    t.history.delete(full(2, f=-0.0))
    t.history.delete(full(3, l=["x", None]))
    t.history.insert(full(3, l=["x", ""]))
    t.history.insert(full(8))
    t.history.insert(full(8))
    t.flush()
    t.history.update(full(8), full(9, f=float("nan")))
    t.history.update(full(9, f=float("nan")), full(8))
    t.history.update(full(1), full(1, "c"))
    t.history.insert(full(5))
    t.history.delete(full(5))
    t.flush(files=2)
    t.history.delete(full(1))
    t.flush()
    t.history.insert(full(1))
    t.flush()
    t.history.truncate()
    t.history.insert(full(1))
    t.history.insert(full(1))
    t.history.insert(full(1))
    t.history.delete(full(1))
    t.flush()


def test_delete_of_a_row_that_the_lake_has_too_few_of_is_refused(table: MakeTable) -> None:
    t = table(FULL, [full(1), full(2)])
    t.history.rows.append(full(1))
    t.history.delete(full(1))
    t.history.delete(full(1))
    with pytest.raises(LakeError, match="lacks rows"):
        t.lake.apply(t.applied, t.history.batch(1), source_id(t.applied.schema))
    t.history.rows.append(full(7))
    t.history.delete(full(7))
    with pytest.raises(LakeError, match="lacks rows"):
        t.lake.apply(t.applied, t.history.batch(1), source_id(t.applied.schema))
    assert multiset(read_lake(t.path, t.applied.schema.id)) == multiset([full(1), full(2)])


PARTS = "id int, d date, v text"


@pytest.mark.parametrize("key", [", PRIMARY KEY (id, d)", ""], ids=["keyed", "whole rows"])
def test_truncate_of_one_partition_empties_only_that(table: MakeTable, key: str) -> None:
    from datetime import date

    def part(id: int, year: int, v: str = "v") -> Row:
        return {"id": id, "d": date(year, 5, 1), "v": v}

    t = table(PARTS + key, [], tail="PARTITION BY RANGE (d)")
    a, b = f"{t.name}_a", f"{t.name}_b"
    t.database.execute(
        f"CREATE TABLE {a} PARTITION OF {t.name} FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');"
        f"CREATE TABLE {b} PARTITION OF {t.name} DEFAULT"
        + (f"; ALTER TABLE {t.name} REPLICA IDENTITY FULL; ALTER TABLE {a} REPLICA IDENTITY FULL; ALTER TABLE {b} REPLICA IDENTITY FULL" if not key else "")
    )  # fmt: skip
    rows = [part(1, 2024), part(2, 2024), part(3, 2023), part(4, 2026), part(5, 2023), part(6, 2024)]
    t.insert(rows)
    t.applied = copied(t.lake, t.database, t.name)
    t.history.schema, t.history.rows = t.applied.schema, rows
    oid_a, oid_b = (t.database.value("SELECT %s::regclass::oid::int8", [name]) for name in (a, b))
    predicates = [t.database.value("SELECT pg_get_partition_constraintdef(%s)", [oid]) for oid in (oid_a, oid_b)]
    history = t.history
    history.insert(part(10, 2024), oid_a)
    history.update(part(2, 2024), part(2, 2024, "x"), relation=oid_a)
    history.delete(part(1, 2024), oid_a)
    history.insert(part(1, 2023), oid_b)
    history.insert(part(11, 2023), oid_b)
    history.truncate(oid_a, predicates[0], lambda one: one["d"].year == 2024)
    history.insert(part(2, 2024, "again"), oid_a)
    history.insert(part(12, 2024), oid_a)
    history.delete(part(3, 2023), oid_b)
    t.flush()
    history.truncate(oid_b, predicates[1], lambda one: one["d"].year != 2024)
    t.flush()
    history.insert(part(30, 2023), oid_b)
    history.truncate()
    history.insert(part(31, 2023), oid_b)
    history.insert(part(32, 2024), oid_a)
    history.truncate(oid_b, "not understood", lambda one: one["d"].year != 2024)
    t.flush()
    history.truncate(oid_b, "satisfies_hash_partition('1'::oid, 2, 0, id)", lambda one: False)
    with pytest.raises(CopyNeeded):
        t.flush()


def test_batch_that_is_in_the_table_already_is_not_applied_again(table: MakeTable) -> None:
    t = table()
    before = t.applied
    t.history.insert(row(10))
    batch = t.history.batch(1)
    first = t.lake.apply(before, batch, source_id(before.schema))
    assert t.lake.apply(before, batch, source_id(before.schema)) == first
    t.history.assert_in(t.path)


def test_batch_that_is_in_the_table_in_part_is_refused(table: MakeTable) -> None:
    t = table()
    before = t.applied
    t.history.insert(row(10))
    t.flush()
    t.history.insert(row(11))
    with pytest.raises(CommitFailed):
        t.lake.apply(before, t.history.batch(5), source_id(before.schema))


def test_batch_without_effect_moves_the_position_without_a_commit(table: MakeTable) -> None:
    t = table()
    files = sorted(t.path.rglob("*"))
    t.flush()
    assert sorted(t.path.rglob("*")) == files
    t.history.insert(row(10))
    t.flush()


def test_table_that_others_dropped_or_rolled_back_is_detected(table: MakeTable, spark: Any) -> None:
    t = table()
    t.history.insert(row(10))
    t.flush()
    t.history.insert(row(11))
    set_back = t.history.batch(2)
    with t.lake._spark.driver.session("a user") as session:
        first = session.sql(f"SELECT snapshot_id FROM lake.public.{t.name}.snapshots ORDER BY committed_at").first()
        assert first is not None
        session.sql(f"CALL lake.system.rollback_to_snapshot('public.{t.name}', {first[0]})")
    with pytest.raises(TableError, match="went back"):
        t.lake.apply(t.applied, set_back, source_id(t.applied.schema))
    t.lake.drop(t.applied.schema.id)
    with pytest.raises(TableError, match="does not exist"):
        t.lake.apply(t.applied, set_back, source_id(t.applied.schema))


def test_a_restated_table_has_the_position_and_the_schema_version_that_it_is_given(table: MakeTable) -> None:
    """As when another group goes on with it, whose change log has numbers of its own."""
    t = table()
    source = source_id(t.applied.schema)
    given = replace(t.applied.schema, version=7)
    first = t.lake.restate(replace(t.applied, lsn=Lsn(t.applied.lsn + 1), manifest=3, schema=given), source)
    assert (first.lsn, first.manifest, first.schema.version) == (t.applied.lsn + 1, 3, 7)
    again = t.lake.restate(replace(first, manifest=1, schema=replace(given, version=0)), source)
    now = t.lake.applied(given.id, source)
    assert now is not None and now == again and (now.manifest, now.schema.version) == (1, 0)
    t.history.assert_in(t.path)


def test_position_is_found_behind_commits_of_others(table: MakeTable) -> None:
    t = table()
    t.history.insert(row(10))
    t.flush()
    with t.lake._spark.driver.session("a user") as session:
        session.sql(
            f"CALL lake.system.rewrite_data_files(table => 'public.{t.name}', options => map('rewrite-all', 'true'))"
        )
    assert t.lake.applied(t.applied.schema.id, source_id(t.applied.schema)) == t.applied
    t.history.delete(row(10))
    t.flush()


def test_columns_named_like_ours_and_like_each_other(table: MakeTable) -> None:
    t = table(
        '"Id" int PRIMARY KEY, "id" int, "_op" text, "_old_Id" int, "c0" text, "k0" int, op text, "s.t`u" text', rows=[]
    )
    one = {"Id": 1, "id": 2, "_op": "D", "_old_Id": 5, "c0": "z", "k0": 7, "op": "D", "s.t`u": "q"}
    t.history.insert(one)
    t.flush()
    t.history.update(one, {**one, "Id": 3, "op": "I"}, unchanged=["_op"])
    t.history.insert({**one, "id": 4})
    t.flush()


AWKWARD = "a.b`c $d"


def test_small_batch_finds_its_rows_in_a_large_table(table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_pruning, "LARGE", 20)

    def one(id: int, text: str, v: str = "old") -> Row:
        return {AWKWARD: id, "t": text, "v": v}

    t = table(f'"{AWKWARD}" bigint, t text, v text, PRIMARY KEY ("{AWKWARD}", t)',
              rows=[one(i, f"key {i}") for i in range(-60, 60)])  # fmt: skip
    t.history.update(one(7, "key 7"), one(7, "key 7", "new"))
    t.flush()
    t.history.insert(one(-(2**63), "least"))
    t.history.update(one(7, "key 7", "new"), one(2**63 - 1, "key 7", "moved"))
    t.history.delete(one(0, "key 0"))
    t.flush()
    t.history.update(one(1, "key 1"), one(1, "it's \\ ${spark.app.name}", "moved"))
    t.flush()
    t.history.update(one(1, "it's \\ ${spark.app.name}", "moved"), one(1, "it's \\ ${spark.app.name}", "again"))
    t.history.delete(one(2**63 - 1, "key 7", "moved"))
    t.flush()


def test_small_batch_finds_its_whole_rows_in_a_large_table(table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_pruning, "LARGE", 20)

    def one(id: int | None, v: str | None = "old", f: float = 0.5) -> Row:
        return {"id": id, "v": v, "f": f}

    t = table("id bigint, v text, f float8", rows=[*(one(i) for i in range(120)), one(7), one(None), one(None, None)])
    t.history.delete(one(7))
    t.flush()
    t.history.update(one(7), one(8))
    t.flush()
    t.history.delete(one(None, None))
    t.history.update(one(None), one(9, f=-0.0))
    t.flush()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How Spark goes about each MERGE of the test."""
    from pyspark.sql import SparkSession

    found: list[str] = []
    run = SparkSession.sql

    def explaining(self: SparkSession, query: str, *others: Any, **named: Any) -> Any:
        if query.startswith("MERGE"):
            (text,) = run(self, f"EXPLAIN {query}").first() or ("",)
            found.append(text)
        return run(self, query, *others, **named)

    monkeypatch.setattr(SparkSession, "sql", explaining)
    return found


@pytest.mark.parametrize("most", [1, 100])
def test_keys_of_many_changes_are_not_sent_to_every_task(
    table: MakeTable, monkeypatch: pytest.MonkeyPatch, plans: list[str], most: int
) -> None:
    for limit in ("BROADCAST_KEYS", "BROADCAST_HASHES"):
        monkeypatch.setattr(f"wal2lake.lake.applying.commit_plan.{limit}", most)
    large = table("id int PRIMARY KEY, big text, n int", rows=[{"id": i, "big": f"x{i}", "n": 0} for i in range(9)])
    for i in range(5):
        large.history.update({"id": i, "big": f"x{i}", "n": 0}, {"id": i, "big": f"x{i}", "n": 1}, unchanged=["big"])
    large.flush()
    whole = table("id int, v text", rows=[{"id": i // 2, "v": "a"} for i in range(9)])
    for i in range(4):
        whole.history.delete({"id": i, "v": "a"})
    whole.flush()
    # The second table has rows that are the same, which the first try finds out.
    assert len(plans) == 3
    assert all(("Broadcast" in plan) == (most == 100) for plan in (plans[0], plans[2])), plans


def test_whole_rows_without_copies_are_found_in_one_pass(table: MakeTable, plans: list[str]) -> None:
    t = table(rows=[row(i) for i in range(60)], tail="; ALTER TABLE {t} REPLICA IDENTITY FULL")
    assert not t.applied.schema.key
    for n in range(2, 5):
        for i in range(0, 60, 2):
            t.history.update(row(i, n=n - 1), row(i, n=n))
        t.history.insert(row(100 + n))
        t.history.delete(row(2 * n - 1))
        t.flush(files=2)
    assert len(plans) == 3
    assert all(plan.count("BatchScan") == plan.count("FileScan") == 1 and "Window" not in plan for plan in plans), plans


def test_whole_rows_of_a_part_of_the_changes_are_found_in_one_pass(table: MakeTable, plans: list[str]) -> None:
    t = table("id int, v text", rows=[{"id": i, "v": "a"} for i in range(9)])
    rows = [dict(one) for one in t.history.rows]
    t.history.delete({"id": 1, "v": "a"})
    t.history.insert({"id": 1, "v": "skipped"})
    t.history.lsn, t.history.seq, t.history.rows = t.history.lsn + 100, 0, rows
    skip = Lsn(t.history.lsn)
    t.history.delete({"id": 1, "v": "a"})
    t.history.delete({"id": 2, "v": "a"})
    t.flush(skip_before=skip)
    assert len(plans) == 1


def test_copies_of_whole_rows_are_noticed_whatever_the_numbers(table: MakeTable) -> None:
    a: Row = {"id": 1, "v": "a"}
    b: Row = {"id": 2, "v": None}
    for stored, deleted in (([a, a], [a]), ([a, a, a, b], [a, a, b]), ([a, b, b], [b])):
        t = table("id int, v text", rows=stored)
        for one in deleted:
            t.history.delete(one)
        t.flush()
    # As many rows go as are to go, but not the same ones.
    for stored, deleted in (([a, a], [a, b]), ([a, b, b], [a, a, b])):
        t = table("id int, v text", rows=stored)
        t.history.rows += deleted
        for one in deleted:
            t.history.delete(one)
        with pytest.raises(LakeError, match="lacks rows"):
            t.lake.apply(t.applied, t.history.batch(1), source_id(t.applied.schema))
        assert multiset(read_lake(t.path, t.applied.schema.id)) == multiset(stored)


def test_rows_with_equal_hashes_stay_distinct(table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collapse, "row_hash", lambda values: f"xxhash64({len(list(values))})")
    t = table(
        "id int, v text", rows=[{"id": 1, "v": "a"}, {"id": 1, "v": "a"}, {"id": 1, "v": None}, {"id": 2, "v": "a"}]
    )
    t.history.delete({"id": 1, "v": "a"})
    t.history.update({"id": 2, "v": "a"}, {"id": 1, "v": "b"})
    t.flush()
    t.history.delete({"id": 1, "v": None})
    t.history.rows.append({"id": 9, "v": "never stored"})
    t.history.delete({"id": 9, "v": "never stored"})
    with pytest.raises(LakeError, match="lacks rows"):
        t.flush()


def test_column_whose_name_spark_would_read_as_a_variable_is_refused(table: MakeTable) -> None:
    with pytest.raises(TableError, match="variable"):
        table('id int PRIMARY KEY, "${user.name}" text', rows=[])


def test_apply_takes_few_calls_into_the_jvm(table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.java_gateway import GatewayClient

    t = table(rows=[row(i) for i in range(60)])
    calls: list[str] = []
    send = GatewayClient.send_command

    def counting(self: Any, command: str, *others: Any, **named: Any) -> Any:
        # Objects are released whenever Python collects them, those of other tests too.
        if not command.startswith("m\n"):
            calls.append(command)
        return send(self, command, *others, **named)

    t.history.update(row(1), row(1, "new"))
    t.flush()
    monkeypatch.setattr(GatewayClient, "send_command", counting)
    t.history.update(row(1, "new"), row(1, "newer"))
    t.history.insert(row(100))
    t.flush()
    assert 0 < len(calls) < 120
