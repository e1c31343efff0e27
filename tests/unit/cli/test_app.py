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
from wal2lake.errors import GroupHeld
from wal2lake.mirror import OnceResult
from wal2lake.observe.status import Status, TableStatus
from wal2lake.observe.tail import Change
from wal2lake.position import Lsn

DSN = "postgresql://user:hush@127.0.0.1:1/shop"
STREAMING = TableStatus("public.a", "default", "STREAMING", "WAL", Lsn(16), 3, 0, 0.0, None)
ERRORED = TableStatus(
    "public.b", "default", "ERRORED", "WAL", None, None, 0, 0.0, None, error="it broke", remedy="mend it"
)
COMMANDS: tuple[list[str], ...] = (
    ["init"], ["check"], ["run"], ["status"], ["tables"], ["tables", "list"], ["tables", "resync"], ["tail"],
    ["teardown"], ["demo"], [],
)  # fmt: skip


class FakeMirror:
    """Answers like a mirror and remembers what it was asked."""

    asked: ClassVar[list[Any]] = []
    once = OnceResult(reached=(STREAMING,), missed=())
    error: ClassVar[Exception | None] = None

    def __init__(self, config: object, spark: object = None, progress: object = None) -> None:
        self.config = config

    def run(self, stop: threading.Event) -> None:
        if self.error:
            raise self.error
        self.asked.append("run")

    def run_once(self, stop: threading.Event) -> OnceResult:
        return self.once

    def status(self) -> Status:
        return Status((), (STREAMING,))

    def tables(self) -> tuple[TableStatus, ...]:
        return (STREAMING,)

    def tail(self, names: Sequence[str], lines: int, stop: threading.Event | None) -> Iterator[Change]:
        self.asked.append((list(names), lines, stop is not None))
        yield Change(
            "public.a", "UPDATE", Lsn(16), 2, 7, datetime(2024, 1, 2, tzinfo=UTC), {"id": 2}, {"id": 1}, ("v",)
        )

    def resync(self, names: Sequence[str], all: bool = False) -> tuple[str, ...]:
        self.asked.append((list(names), all))
        return ("public.a",)

    def teardown(self) -> None:
        self.asked.append("teardown")


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
        "Error: group default is already mirrored by wal2lake on a, process 1",
        "Try: stop that process first; one process at a time runs a group",
    ]


def test_run_runs(file: str, mirror: type[FakeMirror]) -> None:
    assert main(["-c", file, "run"]) == 0
    assert mirror.asked == ["run"]


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
