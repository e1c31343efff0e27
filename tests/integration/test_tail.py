"""`tail`: the changes of the log in the order of their commits, old ones first, then each new one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from capturing import CapturedGroup
from servers import Database
from wal2lake.observe.tail import Change, captured_changes
from wal2lake.schema import TableId

TABLES = """
    CREATE TABLE a (id int PRIMARY KEY, v text, amount numeric(10,2), raw bytea, at timestamptz, big double precision);
    CREATE TABLE b (id int PRIMARY KEY)
"""


@pytest.fixture
def group(database: Database, tmp_path: Path) -> Iterator[CapturedGroup]:
    database.execute(TABLES)
    captured = CapturedGroup(database, tmp_path)
    captured.begin("a", "b").close()
    captured.start()
    yield captured
    captured.stop()


def held(group: CapturedGroup, lines: int = 100, *tables: str) -> list[Change]:
    wanted = frozenset(map(TableId.parse, tables)) or None
    return list(captured_changes([group.log], wanted, lines, None))


def test_every_operation_is_shown_with_its_values(group: CapturedGroup) -> None:
    group.database.execute("INSERT INTO a VALUES (1, 'x', 1.50, '\\x00ff', '2024-01-02 03:04:05Z', 'Infinity')")
    group.database.execute("UPDATE a SET id = 2 WHERE id = 1")
    group.database.execute("DELETE FROM a")
    group.database.execute("TRUNCATE a")
    group.catch_up()
    insert, update, delete, truncate = [change.to_json() for change in held(group)]
    assert insert["event"] == "public.a.INSERT"
    assert insert["row"] == {
        "id": 1, "v": "x", "amount": "1.50", "raw": "\\x00ff", "at": "2024-01-02T03:04:05+00:00", "big": "Infinity",
    }  # fmt: skip
    assert (update["op"], update["old_key"], update["row"]["id"]) == ("UPDATE", {"id": 1}, 2)
    assert (delete["op"], delete["row"]) == ("DELETE", {"id": 2})
    assert (truncate["event"], truncate["row"]) == ("public.a.TRUNCATE", None)


def test_an_update_of_a_whole_row_is_shown_as_one(group: CapturedGroup) -> None:
    group.database.execute("ALTER TABLE a REPLICA IDENTITY FULL; INSERT INTO a (id, v) VALUES (1, 'x'), (2, 'y')")
    group.database.execute("UPDATE a SET v = 'z'; UPDATE a SET id = 3 WHERE id = 2; DELETE FROM a WHERE id = 1")
    group.catch_up()
    told = [
        (change.operation, change.row["id"], change.row["v"], change.old_key) for change in held(group) if change.row
    ]
    assert told == [
        ("INSERT", 1, "x", None), ("INSERT", 2, "y", None), ("UPDATE", 1, "z", None), ("UPDATE", 2, "z", None),
        ("UPDATE", 3, "z", {"id": 2}), ("DELETE", 1, "z", None),
    ]  # fmt: skip


def test_changes_of_several_tables_are_shown_in_commit_order(group: CapturedGroup) -> None:
    for number in range(3):
        group.database.execute(f"INSERT INTO b VALUES ({number}); INSERT INTO a (id) VALUES ({number})")
    group.catch_up()
    told = [(change.table, change.row["id"]) for change in held(group) if change.row]
    assert told == [(table, number) for number in range(3) for table in ("public.b", "public.a")]


def test_only_the_last_lines_of_the_named_tables_are_shown(group: CapturedGroup) -> None:
    for number in range(5):
        group.database.execute(f"INSERT INTO a (id) VALUES ({number})")
        group.database.execute(f"INSERT INTO b VALUES ({number})")
        group.catch_up()
    assert [change.event for change in held(group, 3)] == ["public.b.INSERT", "public.a.INSERT", "public.b.INSERT"]
    assert [change.row for change in held(group, 2, "b")] == [{"id": 3}, {"id": 4}]
    assert held(group, 0) == []


def test_a_large_value_that_stayed_is_named_and_not_shown_as_null(group: CapturedGroup) -> None:
    group.database.execute("ALTER TABLE a ALTER v SET STORAGE EXTERNAL")
    group.database.execute("INSERT INTO a (id, v) VALUES (1, repeat('x', 9000))")
    group.database.execute("UPDATE a SET amount = 2")
    group.catch_up()
    update = held(group)[-1]
    assert update.unchanged == ("v",)
    assert update.row is not None and "v" not in update.row


def test_new_changes_follow_until_a_stop(group: CapturedGroup) -> None:
    group.database.execute("INSERT INTO b VALUES (1)")
    group.catch_up()
    stop = threading.Event()
    following = captured_changes([group.log], None, 0, stop)
    group.database.execute("INSERT INTO b VALUES (2)")
    seen = []
    for change in following:
        seen.append(change.row)
        stop.set()
    assert seen == [{"id": 2}]


def test_what_was_retired_before_it_could_be_shown_is_said(
    group: CapturedGroup, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    following = captured_changes([group.log], None, 10, stop)
    group.database.execute("INSERT INTO b VALUES (1)")
    group.catch_up()
    first = next(following)
    for number in (2, 3):
        group.database.execute(f"INSERT INTO b VALUES ({number})")
        group.catch_up()
    group.log.retire(2)
    second = next(following)
    stop.set()
    assert (first.row, second.row) == ({"id": 1}, {"id": 3})
    assert "manifest 2 are not shown" in caplog.text
