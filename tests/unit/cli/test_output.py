"""Output of commands: the JSON contract, and tables with unchanged names."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from wal2lake.cli.output import ConsoleOutput, JsonOutput, about
from wal2lake.observe.status import GroupStatus, Status, TableStatus
from wal2lake.position import Lsn
from wal2lake.preflight.findings import Finding, Severity

GROUP = GroupStatus(
    name="default", state="RUNNING", slot="wal2lake_default", capture="auto", received_lsn=Lsn(16), logged_lsn=Lsn(16),
    acknowledged_lsn=Lsn(16), lag_bytes=2048, lag_seconds=0.25, retained_wal_bytes=3 * 1024**2,
)  # fmt: skip
TABLE = TableStatus(
    name='public."a [red] :smile:"', group="default", state="STREAMING", mode="WAL", applied_lsn=Lsn(16), rows=12345,
    changes_applied=7, lag_seconds=300.0, last_commit_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
)  # fmt: skip
BROKEN = TableStatus(
    name="public.b", group="default", state="ERRORED", mode="WAL", applied_lsn=None, rows=None, changes_applied=0,
    lag_seconds=0.0, last_commit_at=None, error="its columns changed", remedy="wal2lake tables resync public.b",
    retry_at=datetime(2026, 1, 2, tzinfo=UTC),
)  # fmt: skip
STATUS = Status(groups=(GROUP,), tables=(TABLE, BROKEN))


def shown(status: Status) -> str:
    stream = io.StringIO()
    ConsoleOutput(Console(file=stream, width=200, markup=False, emoji=False, highlight=False)).status(status)
    return stream.getvalue()


def test_the_json_of_status_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    JsonOutput().status(STATUS)
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"groups", "tables"}
    assert set(document["groups"][0]) >= {
        "name", "state", "slot", "capture", "received_lsn", "logged_lsn", "acknowledged_lsn", "lag_bytes",
        "lag_seconds", "retained_wal_bytes",
    }  # fmt: skip
    assert set(document["tables"][0]) >= {
        "name", "group", "state", "mode", "applied_lsn", "rows", "changes_applied", "lag_seconds", "last_commit_at",
        "error", "remedy", "retry_at",
    }  # fmt: skip
    assert document["tables"][0]["applied_lsn"] == "0/10"


def test_a_warning_of_a_group_is_shown_and_is_in_the_json() -> None:
    warned = replace(STATUS, groups=(replace(GROUP, warning="the change log takes 81% of its disk budget"),))
    assert "default: the change log takes 81% of its disk budget" in shown(warned)
    assert warned.to_json()["groups"][0]["warning"] == "the change log takes 81% of its disk budget"


def test_a_series_is_one_document_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = JsonOutput(series=True)
    output.status(STATUS)
    output.status(STATUS)
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first) == json.loads(second)


def test_the_json_of_tables_is_that_of_status(capsys: pytest.CaptureFixture[str]) -> None:
    JsonOutput().tables([TABLE])
    assert json.loads(capsys.readouterr().out) == {"tables": STATUS.to_json()["tables"][:1]}


def test_people_see_names_as_they_are_and_numbers_with_units() -> None:
    text = shown(STATUS)
    assert 'public."a [red] :smile:"' in text
    for part in ("12,345", "5 min", "0.2 s", "2 kB", "3 MB", "0/10", "2026-01-02 03:04:05"):
        assert part in text


def test_the_group_of_a_table_is_shown_where_there_are_several() -> None:
    alone = shown(Status(groups=(), tables=(TABLE,)))
    several = shown(Status(groups=(), tables=(TABLE, replace(BROKEN, group="other"))))
    assert "default" not in alone
    assert "other" in several


def test_an_error_is_below_the_tables_with_its_remedy_and_next_try() -> None:
    lines = [line.rstrip() for line in shown(STATUS).splitlines()]
    assert lines[-2] == "public.b: its columns changed"
    assert lines[-1] == "  try: wal2lake tables resync public.b (next try at 2026-01-02 00:00:00 UTC)"


def test_an_error_that_begins_with_the_name_is_not_given_it_again() -> None:
    assert about("public.a", "public.a: it broke") == "public.a: it broke"
    assert about("public.a", "it broke") == "public.a: it broke"


def test_a_check_is_ok_unless_something_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    warning = Finding("public.a", Severity.WARNS, "inserts only", "ALTER TABLE …")
    JsonOutput().findings([warning])
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "findings": [
            {
                "object": "public.a",
                "level": "warns",
                "consequence": "inserts only",
                "fix": "ALTER TABLE …",
                "sql": False,
            },
        ],
    }
    JsonOutput().findings([warning, Finding("wal_level", Severity.BLOCKS, "is replica")])
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_people_see_a_finding_with_its_fix_below(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleOutput().findings([Finding("wal_level", Severity.BLOCKS, "is replica", "ALTER SYSTEM …")])
    assert capsys.readouterr().out.splitlines() == [
        "blocks wal_level: is replica",
        "       fix: ALTER SYSTEM …",
        "1 of these must be fixed before a run",
    ]
