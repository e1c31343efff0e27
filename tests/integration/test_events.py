"""Flat events: every change once, in the order of the commits, with its values, and exactly from a position on."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from capturing import CapturedGroup
from remedies import heals, toml
from servers import Database
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.errors import EventsGone, PositionUnknown
from wal2lake.mirror import Mirror
from wal2lake.observe import Change, EventQuery
from wal2lake.observe.events import EventLog, follow, parse_start
from wal2lake.observe.flat_dicts import dictionaries
from wal2lake.observe.flat_json import limited_lines
from wal2lake.observe.nested import changes
from wal2lake.observe.tail import captured_changes
from wal2lake.position import Lsn
from wal2lake.source import connect, server_facts

TABLES = """
    CREATE TABLE a (id int PRIMARY KEY, v text, amount numeric(10,2), raw bytea, at timestamptz, big double precision,
        exact numeric, day date, wall timestamp, small real, flags boolean[], words text[], sums numeric(6,3)[]);
    CREATE TABLE b (id int PRIMARY KEY);
    CREATE TABLE whole (x int, y text);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE "T b" ("_op" int PRIMARY KEY, "event_type" text, "a ""q" text)
"""
WORDS = 'a "quoted" \\ back\nline\ttab\x01\x1f\x7f ünï 😀 </x>'


@pytest.fixture
def group(database: Database, tmp_path: Path) -> Iterator[CapturedGroup]:
    database.execute(TABLES)
    captured = CapturedGroup(database, tmp_path)
    captured.begin("a", "b", "whole", '"T b"').close()
    captured.start()
    yield captured
    captured.stop()


def read(group: CapturedGroup, start: str = "beginning", limit: int | None = None, **of: Any) -> list[dict[str, Any]]:
    """The events as JSON has them; the dictionaries must be the same events."""
    text = b"".join(limited_lines(follow([EventLog(group.log, parse_start(start), **of)], None), limit))
    told = [json.loads(line) for line in text.splitlines()]
    parts = follow([EventLog(group.log, parse_start(start), **of)], None)
    same = [event for part in parts for event in dictionaries(part)][:limit]
    assert [list(event) for event in told] == [list(event) for event in same]
    assert [(event.get("_position"), event.get("_op")) for event in told] == [
        (event.get("_position"), event.get("_op")) for event in same
    ]
    return told


def typed(group: CapturedGroup) -> list[dict[str, Any]]:
    parts = follow([EventLog(group.log, "beginning")], None)
    return [event for part in parts for event in dictionaries(part)]


def test_each_operation_is_an_event_with_typed_values(group: CapturedGroup) -> None:
    group.database.execute(
        "INSERT INTO a VALUES (1, 'x', 1.50, '\\x00ff', '2024-01-02 03:04:05.5+02', 'Infinity', "
        "'123456789012345678901234567890.5', '2024-02-03', '2024-02-03 04:05:06', 0.1, '{t,NULL}', '{a,\"b,c\"}', "
        "'{1.5,NULL}')"
    )
    xid = group.database.value("SELECT xmin::text::int8 FROM a")
    group.database.execute("UPDATE a SET id = 2 WHERE id = 1")
    group.database.execute("DELETE FROM a")
    group.database.execute("TRUNCATE a")
    group.catch_up()
    insert, update, delete, truncate = read(group)
    assert insert["event_type"] == "a.INSERT"
    assert (insert["_table"], insert["_schema"], insert["_op"]) == ("a", "public", "INSERT")
    assert {name: value for name, value in insert.items() if name[0] != "_" and name != "event_type"} == {
        "id": 1, "v": "x", "amount": "1.50", "raw": "\\x00ff", "at": "2024-01-02T01:04:05.500000+00:00",
        "big": "Infinity", "exact": "123456789012345678901234567890.5", "day": "2024-02-03",
        "wall": "2024-02-03T04:05:06.000000", "small": 0.1, "flags": [True, None], "words": ["a", "b,c"],
        "sums": ["1.500", None],
    }  # fmt: skip
    assert (insert["_old"], insert["_unchanged"]) == (None, [])
    assert insert["_xid"] == xid
    assert datetime.fromisoformat(insert["_commit_ts"]).tzinfo is not None
    assert (update["_op"], update["_old"], update["id"]) == ("UPDATE", {"id": 1}, 2)
    assert (delete["_op"], delete["id"], "v" in delete) == ("DELETE", 2, False)
    assert (truncate["event_type"], truncate["_partition"]) == ("a.TRUNCATE", None)
    python = typed(group)[0]
    assert (python["amount"], python["exact"]) == (Decimal("1.50"), Decimal("123456789012345678901234567890.5"))
    assert (python["raw"], python["day"]) == (b"\x00\xff", date(2024, 2, 3))
    assert python["at"] == datetime(2024, 1, 2, 1, 4, 5, 500000, UTC)
    assert python["sums"] == [Decimal("1.500"), None]


def test_text_of_any_kind_is_the_same_after_json(group: CapturedGroup) -> None:
    group.database.execute("INSERT INTO a (id, v, words) VALUES (1, %s, %s)", [WORDS, [WORDS, None, "", "null"]])
    group.database.execute("INSERT INTO a (id, v, words) VALUES (2, NULL, '{}')")
    group.database.execute("INSERT INTO a (id, v, raw) VALUES (3, '', '')")
    group.catch_up()
    one, two, three = read(group)
    assert (one["v"], one["words"]) == (WORDS, [WORDS, None, "", "null"])
    assert (two["v"], two["words"], three["v"], three["raw"]) == (None, [], "", "\\x")


def test_floats_are_exact_numbers(group: CapturedGroup) -> None:
    values = ["0.1", "-0", "1e300", "5e-324", "NaN", "-Infinity", "123456789.125"]
    for number, value in enumerate(values):
        group.database.execute(f"INSERT INTO a (id, big) VALUES ({number}, '{value}')")
    group.catch_up()
    told = [event["big"] for event in read(group)]
    assert told == [0.1, 0, 1e300, 5e-324, "NaN", "-Infinity", 123456789.125]


def test_keys_of_events_give_way_to_columns(group: CapturedGroup) -> None:
    group.database.execute("""INSERT INTO "T b" VALUES (1, 'mine', 'q')""")
    group.catch_up()
    (event,) = read(group)
    assert (event["_op"], event["event_type"], event['a "q']) == (1, "mine", "q")
    assert (event["__op"], event["_event_type"], event["__table"]) == ("INSERT", "T b.INSERT", "T b")


def test_an_update_of_a_whole_row_has_its_old_values(group: CapturedGroup) -> None:
    group.database.execute("INSERT INTO whole VALUES (1, 'x'), (2, 'y')")
    group.database.execute("UPDATE whole SET y = 'z' WHERE x = 1; DELETE FROM whole WHERE x = 2")
    # In one transaction, a row that goes and one that comes are two changes.
    group.database.execute("DELETE FROM whole; INSERT INTO whole VALUES (3, NULL)")
    group.catch_up()
    told = [(event["_op"], event["x"], event["y"], event["_old"]) for event in read(group)]
    assert told == [
        ("INSERT", 1, "x", None), ("INSERT", 2, "y", None), ("UPDATE", 1, "z", {"x": 1, "y": "x"}),
        ("DELETE", 2, "y", None), ("DELETE", 1, "z", None), ("INSERT", 3, None, None),
    ]  # fmt: skip


def test_a_large_value_that_stayed_is_named_and_absent(group: CapturedGroup) -> None:
    group.database.execute("ALTER TABLE a ALTER v SET STORAGE EXTERNAL")
    group.database.execute("INSERT INTO a (id, v) VALUES (1, repeat('x', 9000)), (2, 'short')")
    group.database.execute("UPDATE a SET amount = 2")
    group.catch_up()
    *_, large, small = read(group)
    assert (large["_unchanged"], "v" in large, large["amount"]) == (["v"], False, "2.00")
    assert (small["_unchanged"], small["v"]) == ([], "short")


def busy(group: CapturedGroup) -> None:
    """Transactions over all tables, some in one manifest and some in several."""
    for number in range(4):
        group.database.execute(
            f"INSERT INTO a (id, v) SELECT {number} * 100 + g, 'v' || g FROM generate_series(1, 20) g;"
            f"INSERT INTO b VALUES ({number}); INSERT INTO whole VALUES ({number}, 'w');"
            f"UPDATE whole SET y = 'u' WHERE x = {number}; UPDATE a SET v = 'n' WHERE id = {number} * 100 + 3;"
            f"DELETE FROM a WHERE id = {number} * 100 + 4; INSERT INTO b VALUES ({number} + 1000)"
        )
        if number % 2:
            group.catch_up()
    group.database.execute("TRUNCATE a, b, whole")
    group.database.execute("INSERT INTO b VALUES (9)")
    group.catch_up()


def test_events_are_in_the_order_of_their_transactions_over_all_tables(group: CapturedGroup) -> None:
    busy(group)
    told = read(group)
    places = [(int(e["_lsn"].split("/")[0], 16), int(e["_lsn"].split("/")[1], 16), e["_seq"]) for e in told]
    assert places == sorted(places)
    assert len({event["_position"] for event in told}) == len(told) == 4 * 26 + 3 + 1
    expected = ["INSERT"] * 22 + ["UPDATE", "UPDATE", "DELETE", "INSERT"]
    assert [event["_op"] for event in told][:26] == expected
    assert [event["_op"] for event in told][-4:] == ["TRUNCATE"] * 3 + ["INSERT"]


def test_each_position_resumes_exactly(group: CapturedGroup) -> None:
    busy(group)
    told = read(group)
    for number, event in enumerate(told):
        assert read(group, event["_position"]) == told[number + 1 :]
    for event in told:
        if event["_op"] != "TRUNCATE":
            position = f"{event['_lsn']}:{event['_seq']}"
            assert read(group, position) == read(group, event["_position"])
    # A position in the log is before the transaction that commits there.
    assert read(group, told[30]["_lsn"]) == told[26:]


def test_the_form_of_tail_is_the_same_from_a_position(group: CapturedGroup) -> None:
    busy(group)
    found: list[Change] = [
        change for part in follow([EventLog(group.log, "beginning")], None) for change in changes(part)
    ]
    last = list(captured_changes([group.log], None, 1000, None))
    assert [change.to_json() for change in found if change.operation != "TRUNCATE"] == [
        change.to_json() for change in last if change.operation != "TRUNCATE"
    ]
    assert len(found) == len(last)


def test_only_some_tables_operations_and_so_many(group: CapturedGroup) -> None:
    busy(group)
    told = read(group)
    of_b = read(group, tables={group.oid("b")})
    assert of_b == [event for event in told if event["_table"] == "b"]
    assert read(group, operations={"DELETE", "TRUNCATE"}) == [
        event for event in told if event["_op"] in ("DELETE", "TRUNCATE")
    ]
    assert read(group, limit=30) == told[:30]
    assert read(group, "now") == []
    chained, position = [], "beginning"
    while part := read(group, position, limit=7):
        chained += part
        position = part[-1]["_position"]
    assert chained == told


def test_parts_of_a_large_transaction_are_merged_in_order(
    group: CapturedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.database.execute(
        "DO $$ BEGIN FOR i IN 1..3000 LOOP INSERT INTO a (id, v) VALUES (i, repeat('x', 100)); "
        "INSERT INTO whole VALUES (i, 'a'); UPDATE whole SET y = 'b' WHERE x = i; END LOOP; END $$"
    )
    group.catch_up()
    at_once = read(group)
    assert len(at_once) == 9000
    monkeypatch.setattr("wal2lake.observe.events._SMALL_BYTES", 0)
    monkeypatch.setattr("wal2lake.observe.events._MOST_BYTES", 0)
    monkeypatch.setattr("wal2lake.observe.events._LEAST_BYTES", 2000)
    assert read(group) == at_once
    assert read(group, at_once[4500]["_position"]) == at_once[4501:]


def test_what_the_log_has_no_more_is_an_error_that_names_the_gap(group: CapturedGroup) -> None:
    positions = []
    for number in range(4):
        group.database.execute(f"INSERT INTO b VALUES ({number})")
        group.catch_up()
        positions.append(read(group)[-1]["_position"])
    following = follow([EventLog(group.log, parse_start(positions[0]))], None)
    newest = group.log.last()
    assert newest is not None
    group.log.retire(newest.number - 1)
    with pytest.raises(EventsGone) as gone:
        list(following)
    with pytest.raises(EventsGone) as at_start:
        read(group, positions[0])
    oldest = group.log.read(group.log.oldest())
    assert str(oldest.from_lsn) in str(gone.value) and str(oldest.from_lsn) in str(at_start.value)
    assert positions[0].split(":")[0] in str(at_start.value)
    # The remedy goes on behind the gap.
    behind = at_start.value.remedy.split("--from ")[1]
    assert [event["id"] for event in read(group, behind)] == [3]
    assert read(group, positions[3]) == []


def test_a_new_stretch_of_the_log_is_a_gap(group: CapturedGroup) -> None:
    group.database.execute("INSERT INTO b VALUES (1)")
    group.catch_up()
    before = read(group)[-1]["_position"]
    group.stop()
    group.log.begin(group.log.position())
    with pytest.raises(EventsGone) as gone:
        read(group, before)
    resumed = gone.value.remedy.split("--from ")[1]
    assert read(group, resumed) == []
    with pytest.raises(PositionUnknown):
        read(group, f"{before.split('@')[0]}@77")


def test_new_events_follow_until_a_stop(group: CapturedGroup) -> None:
    mirror = Mirror(group.config)
    stop = threading.Event()
    following = mirror.events(stop=stop)
    group.database.execute("INSERT INTO b VALUES (2)")
    seen = []
    for event in following:
        seen.append((event["event_type"], event["id"]))
        stop.set()
    assert seen == [("b.INSERT", 2)]
    assert list(mirror.read_events(EventQuery(start="beginning", limit=0, follow=False)).lines()) in ([], [b""])


def test_a_truncated_partition_is_named(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE p (k int PRIMARY KEY) PARTITION BY RANGE (k);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)"
    )
    group = CapturedGroup(database, tmp_path)
    group.begin("p").close()
    group.start()
    try:
        database.execute("INSERT INTO p VALUES (1), (11); TRUNCATE p1")
        database.execute("TRUNCATE p")
        group.catch_up()
        told = read(group)
    finally:
        group.stop()
    of_leaf = next(event for event in told if event["_op"] == "TRUNCATE")
    assert of_leaf["_partition"]["oid"] == group.oid("p1")
    assert "10" in of_leaf["_partition"]["where"]
    for number, event in enumerate(told):
        assert event["_table"] == "p"
        assert [after["_position"] for after in told[number + 1 :]] == [
            after["_position"]
            for part in follow([EventLog(group.log, parse_start(event["_position"]))], None)
            for after in dictionaries(part)
        ]
    assert all(before["_position"] != after["_position"] for before, after in pairwise(told))


@pytest.fixture
def file(group: CapturedGroup, tmp_path: Path) -> Path:
    """The configuration of the group as a file."""
    file = tmp_path / "wal2lake.toml"
    file.write_text(
        f"[source]\ndsn = {toml(group.config.source.dsn.get_secret_value())}\n[lake]\npath = {toml(str(tmp_path))}\n"
        '[[groups]]\nname = "g"\n'
    )
    return file


def command(file: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The command `tail` as a process: exit code, events, stderr."""
    line = [sys.executable, "-m", "wal2lake", "-c", str(file), "tail", "--no-follow", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(each) for each in done.stdout.splitlines()], done.stderr


def pasted(file: Path, remedy: str) -> list[dict[str, Any]]:
    """The events that the command of a remedy prints."""
    words = shlex.split(remedy[remedy.index("wal2lake tail") :])[2:]
    code, told, _ = command(file, *words)
    assert code == 0
    return told


@heals("EventsGone", "PositionUnknown", "a position is one of a group")
def test_the_command_prints_events_and_errors_of_two_lines(group: CapturedGroup, file: Path) -> None:
    for number in range(3):
        group.database.execute(f"INSERT INTO b VALUES ({number})")
        group.catch_up()
    told = read(group)
    assert command(file, "--format", "flat", "--from", "beginning") == (0, told, "")
    assert command(file, "--format", "flat", "--from", told[0]["_position"], "--max", "1")[1] == told[1:2]
    assert command(file, "--format", "flat", "--from", "beginning", "--op", "delete")[1] == []
    nested = command(file, "--json", "--from", "beginning")[1]
    assert [change["row"] for change in nested] == [{"id": number} for number in range(3)]
    newest = group.log.last()
    assert newest is not None
    group.log.retire(newest.number - 1)
    code, _, errors = command(file, "--format", "flat", "--from", told[0]["_position"])
    error, remedy = errors.splitlines()
    assert (code, error[:6], remedy[:4]) == (1, "Error:", "Try:")
    assert pasted(file, remedy) == told[2:]
    code, _, errors = command(file, "--format", "flat", "--from", "0/1@9")
    assert pasted(file, errors.splitlines()[1]) == told[2:]
    other = ChangeLog(storage_for(group.config.changelog_path), "h")
    with connect(group.config.source) as conn:
        other.create(server_facts(conn), "slot")
    other.begin(Lsn(1))
    code, _, errors = command(file, "--format", "flat", "--from", told[2]["_position"])
    assert code == 1
    assert pasted(file, errors.splitlines()[1]) == []
    for wrong in (("--from", "nowhere"), ("--op", "upsert"), ("--group", "none"), ("--from", "now", "--lines", "3")):
        code, _, errors = command(file, "--format", "flat", *wrong)
        assert (code, len(errors.splitlines())) == (1, 2), errors
