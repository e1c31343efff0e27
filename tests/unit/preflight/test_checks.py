"""The judgements of the preflight check, on plain facts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from wal2lake.config import Config
from wal2lake.java import Java, find_java
from wal2lake.position import Lsn
from wal2lake.preflight import checks as judgement
from wal2lake.preflight.collect import check, look_at_lake
from wal2lake.preflight.findings import Finding, GroupSlot, LakeFacts, Severity
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.source.sessions.server import ServerFacts
from wal2lake.source.tables.facts import HeapFacts, OwnObject, RefusedHeap, owner_remedy
from wal2lake.state import GroupSpec, TableSpec
from wal2lake.state.records import AppendCounts
from wal2lake.types import LakeType

SERVER = ServerFacts(
    version=180006, version_text="18.6", wal_level="logical", system_identifier="1", timeline=1, in_recovery=False,
    database="shop", database_oid=5, encoding="UTF8", slots_used=0, slots_max=10, senders_used=0, senders_max=10,
    max_slot_wal_keep_mb=102400, wal_sender_timeout_ms=60000, role="app", superuser=False, may_replicate=True,
    may_create_in_database=True, wal_end=Lsn(1),
)  # fmt: skip
ORDERS = TableId("public", "orders")
HEAP = HeapFacts(
    root=ORDERS, id=ORDERS, kind="r", persistence="p", schema_usable=True, readable=True,
    root_schema_usable=True, root_readable=True, owned=True, owner="app", owner_superuser=False, row_security=False,
    bytes=8192,
)  # fmt: skip
SLOT = GroupSlot("default", "wal2lake_default")
FOLLOWED = replace(SLOT, exists=True, continued=True)


def heap_findings(**changes: object) -> list[Finding]:
    return list(judgement.judge_heap(replace(HEAP, **changes), SERVER))  # type: ignore[arg-type]


def server_findings(**changes: object) -> list[Finding]:
    return [
        finding
        for finding in judgement.judge_server(replace(SERVER, **changes), over_socket=False)  # type: ignore[arg-type]
        if finding.level is not Severity.NOTES
    ]


def test_a_server_as_it_should_be_gives_nothing_but_the_note_on_kept_wal() -> None:
    assert not server_findings()
    (note,) = judgement.judge_server(SERVER, over_socket=False)
    assert (note.object, note.level) == ("max_slot_wal_keep_size", Severity.NOTES)


def test_a_wal_level_below_logical_blocks_and_says_the_command() -> None:
    (finding,) = server_findings(wal_level="replica")
    assert finding.blocks
    assert finding.fix == "ALTER SYSTEM SET wal_level = 'logical'; -- then restart PostgreSQL"


def test_a_server_before_14_blocks() -> None:
    (finding,) = server_findings(version=130014, version_text="13.14")
    assert finding.blocks
    assert "13.14" in finding.consequence


def test_a_standby_blocks() -> None:
    (finding,) = server_findings(in_recovery=True)
    assert finding.blocks


def test_a_unix_socket_blocks() -> None:
    finding = next(iter(judgement.judge_server(SERVER, over_socket=True)))
    assert finding.blocks
    assert finding.object == "source.dsn"


@pytest.mark.parametrize(
    ("megabytes", "level"), [(-1, Severity.NOTES), (100, Severity.WARNS), (50_000, Severity.NOTES)]
)
def test_the_limit_of_kept_wal_is_always_a_finding(megabytes: int, level: Severity) -> None:
    (finding,) = judgement.judge_server(replace(SERVER, max_slot_wal_keep_mb=megabytes), over_socket=False)
    assert finding.level is level
    assert ("unlimited" in finding.consequence) == (megabytes < 0)


def test_a_group_that_was_never_run_needs_two_slots_and_two_senders() -> None:
    assert not list(judgement.judge_room(replace(SERVER, slots_used=8, senders_used=8), [SLOT]))
    slots, senders = judgement.judge_room(replace(SERVER, slots_used=9, senders_used=9), [SLOT])
    assert slots.fix == "ALTER SYSTEM SET max_replication_slots = 11; -- then restart PostgreSQL"
    assert senders.fix == "ALTER SYSTEM SET max_wal_senders = 11; -- then restart PostgreSQL"


def test_a_polled_slot_needs_no_sender_and_no_slot_for_copies() -> None:
    polled = replace(SLOT, polled=True)
    assert not list(judgement.judge_room(replace(SERVER, slots_used=9, senders_used=10), [polled]))
    (slots,) = judgement.judge_room(replace(SERVER, slots_used=10, senders_used=10), [polled])
    assert slots.fix == "ALTER SYSTEM SET max_replication_slots = 11; -- then restart PostgreSQL"


def test_a_refused_replication_connection_leads_to_polling() -> None:
    (finding,) = judgement.judge_slot(replace(FOLLOWED, refused="no pg_hba.conf entry"))
    assert finding.blocks
    assert 'capture = "poll"' in finding.fix


def test_a_running_group_needs_one_more_slot_for_a_copy() -> None:
    running = replace(SLOT, exists=True, holder="wal2lake default")
    assert not list(judgement.judge_room(replace(SERVER, slots_used=9, senders_used=9), [running]))
    assert len(list(judgement.judge_room(replace(SERVER, slots_used=10, senders_used=9), [running]))) == 1


@pytest.mark.parametrize(
    "slot", [replace(FOLLOWED, lost="was invalidated (wal_removed)"), replace(FOLLOWED, exists=False)]
)
def test_a_slot_that_was_given_up_or_dropped_blocks_and_leads_to_resync(slot: GroupSlot) -> None:
    (finding,) = judgement.judge_slot(slot)
    assert finding.blocks
    assert finding.fix == "wal2lake tables resync --all"


@pytest.mark.parametrize("slot", [replace(FOLLOWED, usable=False), replace(FOLLOWED, continued=None)])
def test_a_slot_of_something_else_blocks(slot: GroupSlot) -> None:
    (finding,) = judgement.judge_slot(slot)
    assert finding.blocks
    assert finding.fix == "SELECT pg_drop_replication_slot('wal2lake_default');"


def test_a_slot_read_by_our_own_run_is_a_note_and_by_another_program_a_warning() -> None:
    (ours,) = judgement.judge_slot(replace(FOLLOWED, holder="wal2lake default"))
    (other,) = judgement.judge_slot(replace(FOLLOWED, holder=""))
    assert (ours.level, other.level) == (Severity.NOTES, Severity.WARNS)


def test_a_free_slot_and_one_that_was_never_made_give_nothing() -> None:
    assert not list(judgement.judge_slot(FOLLOWED))
    assert not list(judgement.judge_slot(SLOT))
    assert not list(judgement.judge_slot(replace(SLOT, continued=False)))


def test_the_findings_for_a_role_without_privileges_are_grants() -> None:
    poor = replace(SERVER, may_replicate=False, may_create_in_database=False)
    theirs = OwnObject("PUBLICATION", ("wal2lake_x",), "boss", owned=False)
    to_make = ["publication wal2lake_x", "schema wal2lake"]
    findings = list(judgement.judge_role(poor, '"app"', '"shop"', [theirs], to_make))
    assert [finding.fix for finding in findings] == [
        'ALTER ROLE "app" REPLICATION;', 'GRANT CREATE ON DATABASE "shop" TO "app";',
        'ALTER PUBLICATION "wal2lake_x" OWNER TO "app";',
    ]  # fmt: skip
    (_, alone, _) = judgement.judge_role(poor, '"app"', '"shop"', [theirs], ["schema wal2lake"])
    assert alone.fix == 'CREATE SCHEMA wal2lake AUTHORIZATION "app";'
    (on_rds,) = judgement.judge_role(replace(poor, on_rds=True), '"app"', '"shop"', [], [])
    assert on_rds.fix == 'GRANT rds_replication TO "app";'
    assert not list(judgement.judge_role(SERVER, '"app"', '"shop"', [replace(theirs, owned=True)], ["schema wal2lake"]))


def test_the_script_has_all_that_sql_can_fix_and_no_name_ends_a_comment() -> None:
    odd = Finding("a\n; DROP TABLE b", Severity.BLOCKS, "is odd", "SELECT 1;", sql=True)
    other = Finding("Java", Severity.BLOCKS, "is not found", "install\nit")
    note = Finding("b", Severity.WARNS, "is so", "SELECT 2;", sql=True)
    assert judgement.script([odd, other, note]) == (
        "-- a ; DROP TABLE b: is odd\nSELECT 1;\n-- Java: is not found\n-- no SQL: install it\n"
    )


def test_the_rights_of_an_owner_never_make_a_superuser() -> None:
    assert owner_remedy("app", ORDERS, "boss", False, True, 180000) == 'GRANT "boss" TO "app";'
    assert owner_remedy("app", ORDERS, "boss", False, False, 160000) == 'GRANT "boss" TO "app" WITH INHERIT TRUE;'
    before = owner_remedy("app", ORDERS, "boss", False, False, 150000)
    assert before == 'GRANT "boss" TO "app"; ALTER ROLE "app" INHERIT;'
    assert owner_remedy("app", ORDERS, "root", True, True, 180000) == 'ALTER TABLE "public"."orders" OWNER TO "app";'


def test_an_ordinary_table_gives_nothing() -> None:
    assert not heap_findings()
    assert not list(judgement.judge_updates(ORDERS, (), ours=True))


KEYLESS = RefusedHeap(ORDERS, ReplicaIdentity.DEFAULT, None, True, (), False)


@pytest.mark.parametrize(
    ("changes", "why", "identity"),
    [
        ({}, "no primary key", "FULL"),
        ({"primary_key": False}, "deferrable", "FULL"),
        ({"identity": ReplicaIdentity.NOTHING, "primary_key": True}, "NOTHING", "DEFAULT"),
        ({"identity": ReplicaIdentity.NOTHING}, "NOTHING", "FULL"),
        (
            {"identity": ReplicaIdentity.INDEX, "primary_key": True},
            "index of its replica identity does not exist",
            "DEFAULT",
        ),
        ({"primary_key": True, "unidentified": False, "filtered_by": ["s"]}, "row filter uses s", "FULL"),
        ({"identity": ReplicaIdentity.FULL, "unidentified": False, "listed": True}, "column list", "DEFAULT"),
    ],
)
def test_a_table_whose_updates_would_be_refused_blocks(changes: dict[str, Any], why: str, identity: str) -> None:
    heaps = [replace(KEYLESS, **changes)]
    (finding,) = judgement.judge_updates(ORDERS, heaps, ours=True)
    assert finding.blocks
    assert why in finding.consequence
    assert "refuses UPDATE and DELETE" in finding.consequence
    assert "[tables.'public.orders'] append_only = true" in finding.consequence
    assert finding.fix == f'ALTER TABLE "public"."orders" REPLICA IDENTITY {identity};'
    (theirs,) = judgement.judge_updates(ORDERS, heaps, ours=False)
    assert theirs.level is Severity.WARNS


def test_many_partitions_get_their_identity_by_one_statement() -> None:
    heaps = [replace(KEYLESS, id=TableId("public", f"orders_{number}")) for number in range(4)]
    (finding,) = judgement.judge_updates(TableId("public", "it's"), heaps, ours=True)
    assert "of its partition public.orders_0, it has no primary key" in finding.consequence
    assert """pg_partition_tree('"public"."it''s"')""" in finding.fix


def test_counted_updates_are_those_since_the_copy_and_a_reset_hides_none_after_it() -> None:
    counts = AppendCounts({1: 5, 2: 3}, None)
    assert counts.changes({1: 5, 2: 3}) == 0
    assert counts.changes({1: 6, 2: 3, 9: 2}) == 3
    assert counts.changes({1: 0, 2: 1}) == 1
    assert AppendCounts({1: 5}, datetime.now(UTC)).changes({1: 0}) == 1


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"readable": False}, 'GRANT SELECT ON "public"."orders" TO "app";'),
        ({"schema_usable": False}, 'GRANT USAGE ON SCHEMA "public" TO "app";'),
        ({"root_readable": False, "root": TableId("s", "r")}, 'GRANT SELECT ON "s"."r" TO "app";'),
        ({"owned": False, "owner": "boss"}, 'GRANT "boss" TO "app"'),
        ({"row_security": True}, 'ALTER ROLE "app" BYPASSRLS'),
        ({"persistence": "u"}, "ALTER TABLE"),
        ({"kind": "f"}, "exclude = "),
    ],
)
def test_a_table_that_cannot_be_read_or_published_blocks(changes: dict[str, object], fix: str) -> None:
    (finding,) = heap_findings(**changes)
    assert finding.blocks
    assert finding.fix.startswith(fix)


def test_names_in_a_fix_are_quoted() -> None:
    odd = TableId('My "odd"', "order")
    (finding,) = judgement.judge_updates(odd, [replace(KEYLESS, id=odd)], ours=True)
    assert finding.fix == 'ALTER TABLE "My ""odd"""."order" REPLICA IDENTITY FULL;'


def schema(*columns: tuple[str, str, str]) -> TableSchema:
    made = tuple(Column(name, 1, -1, type_name, LakeType.parse(lake)) for name, type_name, lake in columns)
    return TableSchema(1, ORDERS, made, (), ReplicaIdentity.FULL)


def test_types_kept_as_text_are_noted_once_per_type() -> None:
    columns = [(f"c{number}", "interval", "string") for number in range(5)]
    (note,) = judgement.judge_types([schema(*columns)])
    assert (note.object, note.level) == ("type interval", Severity.NOTES)
    assert note.consequence.endswith("public.orders.c0, public.orders.c1, public.orders.c2 and 2 more")


def test_text_is_not_worth_a_note() -> None:
    natural = [("a", "text", "string"), ("b", "character varying(10)", "string"), ("c", "jsonb", "string")]
    assert not list(judgement.judge_types([schema(*natural, ("d", "integer", "int"), ("e", "text[]", "list<string>"))]))


def test_the_note_on_a_numeric_without_precision_shows_the_override() -> None:
    (note,) = judgement.judge_types([schema(("total", "numeric", "string"))])
    assert "decimal(20,4)" in note.fix


def test_an_array_declared_with_more_dimensions_is_noted_as_text() -> None:
    (note,) = judgement.judge_types([schema(("grid", "integer[]", "string"))])
    assert "more than one dimension" in note.consequence


def test_generated_columns_that_are_not_published_are_noted() -> None:
    (before,) = judgement.judge_generated({"public.orders": ["total"]}, 170000)
    (since,) = judgement.judge_generated({"public.orders": ["total"]}, 180000)
    assert "before 18" in before.consequence
    assert "virtual" in since.consequence


def test_settings_of_a_table_in_no_group_warn() -> None:
    (finding,) = judgement.judge_settings(["public.a", "public.b"], {"public.a"})
    assert (finding.object, finding.level) == ("[tables.'public.b']", Severity.WARNS)


def test_a_table_of_two_groups_blocks() -> None:
    (finding,) = judgement.judge_wanted_twice({"public.a": ["x", "y"], "public.b": ["x"]})
    assert finding.blocks
    assert finding.object == "public.a"


@pytest.mark.parametrize(("java", "blocks"), [((None, None), 1), (("/j", 11), 1), (("/j", 17), 0), (("/j", None), 0)])
def test_java_17_is_needed(java: tuple[str | None, int | None], blocks: int) -> None:
    assert sum(finding.blocks for finding in judgement.judge_java(Java(*java))) == blocks


def test_a_lake_without_room_warns_and_one_without_access_blocks() -> None:
    assert not list(judgement.judge_lake(LakeFacts("/lake", None, 100), 100))
    (room,) = judgement.judge_lake(LakeFacts("/lake", None, 99), 100)
    (access,) = judgement.judge_lake(LakeFacts("/lake", "Permission denied", 0), 0)
    assert (room.level, access.level) == (Severity.WARNS, Severity.BLOCKS)


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21)])
def test_java_is_found_by_java_home_and_its_release_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == Java(str(binary), major)


def test_java_without_a_release_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\necho 'openjdk version \"19.0.1\" 2022' >&2\n")
    binary.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java().major == 19


def test_no_java_is_found_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == Java(None, None)


def test_looking_at_a_lake_that_does_not_exist_makes_nothing(tmp_path: Path) -> None:
    facts = look_at_lake(tmp_path / "a" / "lake")
    assert facts.problem is None
    assert facts.free_bytes > 0
    assert not list(tmp_path.iterdir())


def test_a_file_where_the_lake_should_be_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    assert look_at_lake(tmp_path / "lake").problem == "Not a directory"


def test_a_server_that_can_not_be_reached_is_a_finding(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"source": {"dsn": "postgresql://app:hush@127.0.0.1:1/shop"}, "lake": {"path": str(tmp_path / "lake")}}
    )
    (finding, *_) = check(config)
    assert finding.blocks
    assert "127.0.0.1:1/shop" in finding.consequence
    assert "hush" not in finding.consequence + finding.fix


def test_a_difference_between_configuration_and_state_store_says_what_a_run_does() -> None:
    specs = [
        GroupSpec("both", True), GroupSpec("off", False, enabled=False), GroupSpec("made", True),
        GroupSpec("going", True, dropping=True),
    ]  # fmt: skip
    found = {
        finding.object: finding
        for finding in judgement.judge_groups(["both", "off"], specs, ["made", "both", "left", "off"])
    }
    assert set(found) == {"group both", "group off", "group going", "group left"}
    assert "uses the configuration" in found["group both"].consequence
    assert found["group off"].fix == "wal2lake groups enable off"
    assert found["group left"].fix == "wal2lake groups drop left"


def test_a_configured_table_that_a_command_removed_is_a_note() -> None:
    specs = [TableSpec(1, TableId("public", "a"), wanted=False), TableSpec(2, TableId("public", "b"), wanted=True)]
    (finding,) = judgement.judge_removed({1: "public.a", 2: "public.b"}, specs)
    assert finding.object == "public.a" and finding.fix == "wal2lake tables add 'public.a'"


def test_failover_slots_need_postgresql_17() -> None:
    assert list(judgement.judge_failover(True, 170000)) == list(judgement.judge_failover(False, 160000)) == []
    (finding,) = judgement.judge_failover(True, 160004)
    assert not finding.blocks
