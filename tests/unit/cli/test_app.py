"""The commands without a server: help, usage, errors in two lines, exit codes. The mirror is a stand-in."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

import wal2lake.mirror
from wal2lake.cli import main
from wal2lake.config import GroupConfig
from wal2lake.errors import GroupHeld
from wal2lake.mirror import OnceResult, RunOptions
from wal2lake.observe.status import Status, TableStatus
from wal2lake.observe.tail import Change
from wal2lake.position import Lsn
from wal2lake.reconcile.commands import GroupSummary
from wal2lake.schema import TableId
from wal2lake.state import GroupSpec, HistoryEntry

DSN = "postgresql://user:hush@127.0.0.1:1/shop"
STREAMING = TableStatus("public.a", "default", "STREAMING", "WAL", Lsn(16), 3, 0, 0.0, None)
ERRORED = TableStatus(
    "public.b", "default", "ERRORED", "WAL", None, None, 0, 0.0, None, error="it broke", remedy="mend it"
)
COMMANDS: tuple[list[str], ...] = (
    ["init"], ["check"], ["run"], ["status"], ["tables"], ["groups"], ["config"], ["tail"], ["teardown"], ["demo"], [],
    *(["tables", name] for name in ("list", "add", "remove", "pause", "resume", "resync", "move", "history")),
    *(["groups", name] for name in ("list", "create", "drop", "enable", "disable")),
    ["config", "show"],
)  # fmt: skip


class FakeMirror:
    """Answers like a mirror and remembers what it was asked."""

    asked: ClassVar[list[Any]] = []
    once = OnceResult(reached=(STREAMING,), missed=())
    error: ClassVar[Exception | None] = None

    def __init__(self, config: object, spark: object = None, progress: object = None) -> None:
        self.config = config

    def run(self, stop: threading.Event, options: RunOptions) -> None:
        if self.error:
            raise self.error
        self.asked.append(("run", options))

    def run_once(self, stop: threading.Event, options: RunOptions) -> OnceResult:
        return self.once

    def add(self, *asked: Any) -> tuple[str, ...]:
        self.asked.append(asked)
        return ("public.a",)

    remove = pause = resume = move = add

    def history(self, name: str) -> tuple[HistoryEntry, ...]:
        at = datetime(2024, 1, 2, tzinfo=UTC)
        return (HistoryEntry("g", 1, TableId.parse(name), at, "me", "CATCHUP", "ERRORED", "it broke"),)

    def groups(self) -> tuple[GroupSummary, ...]:
        return (GroupSummary("g", "nowhere", False, None, "DISABLED", ("public.*",), (), 3, "wal2lake_g_x"),)

    def create_group(self, spec: GroupSpec) -> None:
        self.asked.append(spec)

    def enable_group(self, name: str, enabled: bool = True) -> None:
        self.asked.append((name, enabled))

    def drop_group(self, name: str) -> bool:
        return name == "gone"

    def stored_groups(self) -> tuple[GroupConfig, ...]:
        return (GroupConfig(name="made", tables=("s.*",)),)

    def status(self) -> Status:
        return Status((), (STREAMING,))

    def tables(self) -> tuple[TableStatus, ...]:
        return (STREAMING,)

    def tail(self, names: Sequence[str], lines: int, stop: threading.Event | None) -> Iterator[Change]:
        self.asked.append((list(names), lines, stop is not None))
        yield Change(
            "public.a", "UPDATE", Lsn(16), 2, 7, datetime(2024, 1, 2, tzinfo=UTC), {"id": 2}, {"id": 1}, ("v",)
        )

    def resync(self, names: Sequence[str], all: bool = False, together: bool = False) -> tuple[str, ...]:
        self.asked.append((list(names), all))
        return ("public.a",)

    def teardown(self, other: bool = False) -> None:
        self.asked.append("teardown --other" if other else "teardown")


@pytest.fixture(autouse=True)
def quiet_loggers() -> Iterator[None]:
    ours = logging.getLogger("wal2lake")
    before = (list(ours.handlers), ours.level, ours.propagate)
    yield
    ours.handlers, ours.level, ours.propagate = before[0], before[1], before[2]


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> type[FakeMirror]:
    monkeypatch.setattr(FakeMirror, "asked", [])
    monkeypatch.setattr(wal2lake.mirror, "Mirror", FakeMirror)
    return FakeMirror


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shop.toml"
    path.write_text(f'[source]\ndsn = "{DSN}"\n')
    return str(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_shows_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert f"Example: wal2lake {'' if command else 'init'}" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("wal2lake ")


def test_the_module_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "wal2lake", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("wal2lake ")


def test_wrong_usage_exits_2() -> None:
    assert main(["fly"]) == 2
    assert main(["run", "--twice"]) == 2
    assert main(["demo", "--seconds", "0"]) == 2


def test_init_writes_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert "wal2lake check" in capsys.readouterr().out
    written = (tmp_path / "wal2lake.toml").read_text()
    (tmp_path / "wal2lake.toml").write_text("mine")
    assert main(["init"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "Error: wal2lake.toml: already exists",
        "Try: overwrite it with: wal2lake init --force",
    ]
    assert (tmp_path / "wal2lake.toml").read_text() == "mine"
    assert main(["init", "--force"]) == 0
    assert (tmp_path / "wal2lake.toml").read_text() == written


@pytest.mark.parametrize("there", [False, True])
def test_init_writes_a_file_that_only_its_owner_can_read(tmp_path: Path, there: bool) -> None:
    file = tmp_path / "shop.toml"
    if there:
        file.write_text("")
        file.chmod(0o644)
    assert main(["-c", str(file), "init", "--force"]) == 0
    assert file.stat().st_mode & 0o777 == 0o600


def test_init_where_nothing_can_be_written_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", str(tmp_path / "none" / "x.toml"), "init"]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run"], ["status"], ["tables", "list"], ["check"], ["teardown", "--yes"]])
def test_a_bad_configuration_is_two_lines_on_stderr(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.toml").write_text("[source]\ndns = 'postgresql://u:hush@db/x'")
    assert main(["-c", str(tmp_path / "x.toml"), *command]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    error, remedy = captured.err.splitlines()
    assert error == "Error: source.dns: unknown key"
    assert remedy.startswith("Try: ")


def test_a_foreign_error_shows_its_name_only_and_its_traceback_with_debug(
    file: str, mirror: type[FakeMirror], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mirror, "error", ValueError("row value 4711"))
    assert main(["-c", file, "run"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "Error: unexpected ValueError",
        "Try: run with --debug to see where it comes from",
    ]
    assert main(["-c", file, "--debug", "run"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_of_ours_says_its_remedy(
    file: str, mirror: type[FakeMirror], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mirror, "error", GroupHeld(group="default", holder="wal2lake on a, process 1"))
    assert main(["-c", file, "run"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "Error: group default is already run by wal2lake on a, process 1",
        "Try: stop that process first; only one process at a time runs a group",
    ]


def test_run_runs(file: str, mirror: type[FakeMirror]) -> None:
    assert main(["-c", file, "run"]) == 0
    assert mirror.asked == [("run", RunOptions())]


def test_run_once_prints_the_tables(file: str, mirror: type[FakeMirror], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", file, "run", "--once"]) == 0
    out = capsys.readouterr().out
    assert "public.a" in out
    assert out.splitlines()[-1] == "1 tables are up to date"


def test_run_once_names_each_table_that_missed_and_exits_1(
    file: str, mirror: type[FakeMirror], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mirror, "once", OnceResult(reached=(STREAMING,), missed=(ERRORED,)))
    assert main(["-c", file, "run", "--once"]) == 1
    captured = capsys.readouterr()
    assert "public.a" in captured.out
    assert captured.err.splitlines() == [
        "Error: public.b: it broke",
        "Try: mend it",
    ]


def test_resync_takes_names_or_all_and_not_both(file: str, mirror: type[FakeMirror]) -> None:
    assert main(["-c", file, "tables", "resync"]) == 2
    assert main(["-c", file, "tables", "resync", "public.a", "--all"]) == 2
    assert main(["-c", file, "tables", "resync", "a.b.c"]) == 2
    assert mirror.asked == []
    assert main(["-c", file, "tables", "resync", "public.a", "b"]) == 0
    assert main(["-c", file, "tables", "resync", "--all"]) == 0
    assert mirror.asked == [(["public.a", "b"], False), ([], True)]


def test_teardown_asks_first(
    file: str, mirror: type[FakeMirror], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-c", file, "teardown"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "Try: add --yes"
    assert mirror.asked == []
    assert main(["-c", file, "teardown", "--yes"]) == 0
    assert mirror.asked == ["teardown"]


def test_status_and_tables_print_to_stdout(
    file: str, mirror: type[FakeMirror], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["status"], ["status", "--json"], ["tables", "list"], ["tables", "list", "--json"]):
        assert main(["-c", file, *command]) == 0
        captured = capsys.readouterr()
        assert "public.a" in captured.out
        assert captured.err == ""


def test_a_server_that_is_down_is_two_lines_without_the_password(file: str, capsys: Any) -> None:
    assert main(["-c", file, "status"]) == 1
    error, remedy = capsys.readouterr().err.splitlines()
    assert error.startswith("Error: cannot connect to ")
    assert remedy.startswith("Try: ")
    assert "hush" not in error + remedy


def test_tail_prints_a_line_per_change(mirror: type[FakeMirror], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", file, "tail", "public.a", "-n", "3"]) == 0
    assert capsys.readouterr().out == (
        '2024-01-02 00:00:00 0/10/2 public.a.UPDATE {"id": 1} {"id": 2} unchanged: v\n'
    )  # fmt: skip
    assert main(["-c", file, "tail", "--json", "--no-follow"]) == 0
    assert json.loads(capsys.readouterr().out)["event"] == "public.a.UPDATE"
    assert mirror.asked == [(["public.a"], 3, True), ([], 10, False)]


def test_tail_of_what_is_no_table_name_is_wrong_usage(mirror: type[FakeMirror], file: str) -> None:
    assert main(["-c", file, "tail", "a.b.c.d"]) == 2
    assert mirror.asked == []


def test_what_is_asked_of_tables_is_passed_on(
    file: str, mirror: type[FakeMirror], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["add", "a", "--group", "g", "--no-copy", "--as", "x.y"], ["remove", "a", "b", "--drop-lake"], ["pause", "a"],
        ["resume", "a"], ["move", "a", "--group", "g"],
    ):  # fmt: skip
        assert main(["-c", file, "tables", *command]) == 0
    assert mirror.asked == [(["a"], "g", False, "x.y"), (["a", "b"], True), (["a"],), (["a"],), (["a"], "g")]
    out = capsys.readouterr().out
    assert "public.a" in out and "lake tables are dropped" in out
    assert main(["-c", file, "tables", "pause", "a.b.c"]) == 2


def test_the_history_of_a_table_is_shown(
    file: str, mirror: type[FakeMirror], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-c", file, "tables", "history", "public.a"]) == 0
    assert capsys.readouterr().out.split() == [
        "2024-01-02",
        "00:00:00",
        "CATCHUP",
        "→",
        "ERRORED:",
        "it",
        "broke",
        "[me]",
    ]
    assert main(["-c", file, "tables", "history", "public.a", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["history"]
    assert (entry["table"], entry["from"], entry["to"], entry["who"]) == ("public.a", "CATCHUP", "ERRORED", "me")


def test_what_is_asked_of_groups_is_passed_on(
    file: str, mirror: type[FakeMirror], capsys: pytest.CaptureFixture[str]
) -> None:
    create = ["groups", "create", "g", "-t", "s.*", "-t", "public.x", "--exclude", "s.y", "--flush-interval", "2"]
    assert main(["-c", file, *create]) == 0
    assert main(["-c", file, "groups", "disable", "g"]) == 0
    assert "holds WAL" in capsys.readouterr().out
    assert main(["-c", file, "groups", "enable", "g"]) == 0
    assert mirror.asked == [GroupSpec("g", True, ("s.*", "public.x"), ("s.y",), 2.0), ("g", False), ("g", True)]
    assert [main(["-c", file, "groups", "drop", name]) for name in ("gone", "busy")] == [0, 1]


def test_a_group_that_is_not_configured_is_pointed_out(
    file: str, mirror: type[FakeMirror], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-c", file, "groups", "list"]) == 0
    assert "wal2lake groups drop g" in capsys.readouterr().out
    assert main(["-c", file, "groups", "list", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert (group["name"], group["origin"], group["enabled"], group["mirrored"]) == ("g", "nowhere", False, 3)


def test_the_configuration_is_shown_without_secrets(
    file: str, mirror: type[FakeMirror], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-c", file, "config", "show", "--json"]) == 0
    out = capsys.readouterr().out
    found = {each["key"]: each for each in json.loads(out)["settings"]}
    assert "hush" not in out
    assert found["source.dsn"] == {"key": "source.dsn", "value": "***", "origin": "file"}
    assert found["groups.made.tables"]["origin"] == "state store"
    assert main(["-c", file, "config", "show"]) == 0
    assert "source.dsn" in capsys.readouterr().out


def test_a_run_can_be_limited_to_groups(file: str, mirror: type[FakeMirror]) -> None:
    assert main(["-c", file, "run", "--group", "a", "-g", "b", "--resync-on-gap"]) == 0
    assert mirror.asked == [("run", RunOptions(("a", "b"), True))]


@pytest.mark.parametrize("command", [["tail"], ["tables", "pause"], ["groups", "drop"]])
def test_help_names_arguments_without_types_of_python(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Arguments:" in out and "<" not in out
