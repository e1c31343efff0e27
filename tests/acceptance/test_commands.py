"""The commands that need no Spark: their output and exit codes."""

from __future__ import annotations

import time
import tomllib

import pytest

from command import Finished, Project
from servers import Database
from wal2lake.demo.server import EmbeddedServer

SECRET = "correct-horse-battery"


def assert_two_lines(finished: Finished) -> tuple[str, str]:
    """An error is `Error:` and `Try:` on stderr, exit 1, and no traceback."""
    assert finished.code == 1, finished.all
    lines = [line for line in finished.err.splitlines() if line.strip()]
    assert len(lines) == 2, finished.all
    assert lines[0].startswith("Error: ") and lines[1].startswith("Try: "), finished.all
    assert "Traceback" not in finished.all
    assert lines[0] != "Error: " and lines[1] != "Try: "
    return lines[0], lines[1]


def test_init_writes_a_configuration_that_is_valid_toml(project: Project) -> None:
    finished = project.run("init")
    assert finished.code == 0, finished.all
    written = tomllib.loads((project.directory / "wal2lake.toml").read_text())
    assert "dsn" in written["source"]


def test_init_does_not_overwrite(project: Project) -> None:
    file = project.directory / "wal2lake.toml"
    file.write_text("# mine\n")
    error, _ = assert_two_lines(project.run("init"))
    assert "wal2lake.toml" in error
    assert file.read_text() == "# mine\n"


def test_options_stand_before_the_command(project: Project, database: Database) -> None:
    project.configure(database.dsn)
    (project.directory / "wal2lake.toml").rename(project.directory / "shop.toml")
    finished = project.run("-c", "shop.toml", "status", "--json")
    assert finished.code == 0, finished.all


def test_check_finds_nothing_in_the_way_of_a_plain_table(project: Project, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    project.configure(database.dsn)
    finished = project.run("check", "--json")
    assert finished.code == 0, finished.all
    assert finished.json["ok"] is True


def test_check_names_a_table_whose_rows_cannot_be_identified(project: Project, database: Database) -> None:
    database.execute("CREATE TABLE log_lines (v text)")
    project.configure(database.dsn)
    finished = project.run("check")
    assert "log_lines" in finished.out and "REPLICA IDENTITY FULL" in finished.out, finished.all


def test_check_fails_when_a_named_table_is_missing(project: Project, database: Database) -> None:
    project.configure(database.dsn, '[[groups]]\nname = "default"\ntables = ["public.nothing"]')
    finished = project.run("check")
    assert finished.code == 1, finished.all
    assert "public.nothing" in finished.all
    assert "Traceback" not in finished.all


def test_status_before_the_first_run_shows_the_desired_tables(project: Project, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    project.configure(database.dsn)
    status = project.status()
    (table,) = status["tables"]
    assert (table["name"], table["state"], table["changes_applied"]) == ("public.t", "PENDING", 0)
    assert [group["name"] for group in status["groups"]] == ["default"]


def test_commands_without_spark_answer_quickly(project: Project, database: Database) -> None:
    project.configure(database.dsn)
    project.run("status", "--json")
    began = time.monotonic()
    project.run("status", "--json")
    assert time.monotonic() - began < 5


def test_tail_before_the_first_run_shows_nothing_and_names_an_unknown_table(
    project: Project, database: Database
) -> None:
    project.configure(database.dsn)
    finished = project.run("tail", "--no-follow")
    assert (finished.code, finished.out) == (0, ""), finished.all
    error, _ = assert_two_lines(project.run("tail", "public.nothing"))
    assert "public.nothing" in error


def test_commands_on_tables_and_groups_need_no_run(project: Project, database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA s; CREATE TABLE s.b (id int PRIMARY KEY)")
    project.configure(database.dsn)
    assert project.run("groups", "list", "--json").json["groups"][0]["origin"] == "configuration"
    assert database.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'wal2lake'") == [], "reading makes nothing"
    finished = project.run("tables", "add", "s.b")
    assert finished.code == 0 and "s.b" in finished.out, finished.all
    error, remedy = assert_two_lines(project.run("tables", "add", "s.nothing"))
    assert "s.nothing" in error
    error, remedy = assert_two_lines(project.run("tables", "pause", "s.nothing"))
    assert "tables list" in remedy
    error, remedy = assert_two_lines(project.run("groups", "create", "second", "--tables", "public.*"))
    assert "public.a" in error and "tables move" in remedy
    assert project.run("groups", "create", "second").code == 0
    assert project.run("groups", "disable", "second").code == 0
    groups = {group["name"]: group for group in project.run("groups", "list", "--json").json["groups"]}
    assert (groups["second"]["origin"], groups["second"]["state"]) == ("state store", "DISABLED")
    finished = project.run("check", "--json")
    assert any(finding["object"] == "group second" for finding in finished.json["findings"]), finished.all
    finished = project.run("groups", "drop", "second")
    assert finished.code == 0, finished.all
    error, remedy = assert_two_lines(project.run("groups", "drop", "default"))
    assert "[[groups]]" in remedy
    shown = project.run("config", "show", "--json").json["settings"]
    assert {"key": "source.dsn", "value": "***", "origin": "file"} in shown


def test_teardown_of_nothing_is_fine(project: Project, database: Database) -> None:
    project.configure(database.dsn)
    finished = project.run("teardown", "--yes")
    assert finished.code == 0, finished.all
    assert database.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'wal2lake'") == []


@pytest.mark.parametrize("command", [["status"], ["run", "--once"], ["tables", "list"], ["teardown", "--yes"]])
def test_a_wrong_password_is_two_lines_and_never_shown(
    project: Project, database: Database, server: EmbeddedServer, command: list[str]
) -> None:
    project.configure(database.dsn.replace(server.password, SECRET))
    finished = project.run(*command)
    error, _ = assert_two_lines(finished)
    assert "password" in error
    assert SECRET not in finished.all


def test_a_wrong_password_is_found_by_check(project: Project, database: Database, server: EmbeddedServer) -> None:
    project.configure(database.dsn.replace(server.password, SECRET))
    finished = project.run("check")
    assert finished.code == 1, finished.all
    assert "password" in finished.all
    assert "Traceback" not in finished.all and SECRET not in finished.all


def test_an_unknown_database_is_named(project: Project, server: EmbeddedServer) -> None:
    project.configure(server.dsn("no_such_database"))
    finished = project.run("status")
    error, _ = assert_two_lines(finished)
    assert "no_such_database" in error
    assert server.password not in finished.all


def test_a_server_that_is_down_is_named(project: Project) -> None:
    project.configure(f"postgresql://postgres:{SECRET}@127.0.0.1:1/shop")
    finished = project.run("status")
    error, _ = assert_two_lines(finished)
    assert "127.0.0.1" in error
    assert SECRET not in finished.all


@pytest.mark.parametrize("command", [["run", "--once"], ["run"]])
def test_run_on_a_server_that_is_down_fails_at_once(project: Project, command: list[str]) -> None:
    project.configure(f"postgresql://postgres:{SECRET}@127.0.0.1:1/shop")
    finished = project.run(*command, timeout=60)
    error, _ = assert_two_lines(finished)
    assert "127.0.0.1" in error
    assert SECRET not in finished.all


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('[lake]\npaht = "x"', ["lake.paht", "unknown key", "path"]),
        ('[lake]\nformat = "csv"', ["lake.format", "csv", "iceberg"]),
        ('[[groups]]\nname = "default"\nflush_interval = "soon"', ["flush_interval", "soon"]),
        ('[[groups]]\nname = "Not Allowed"', ["groups[0].name", "Not Allowed"]),
        ("nonsense", ["wal2lake.toml", "TOML"]),
    ],
)
def test_a_bad_setting_names_field_value_and_what_is_allowed(project: Project, setting: str, words: list[str]) -> None:
    project.configure(f"postgresql://postgres:{SECRET}@127.0.0.1:1/shop", setting)
    finished = project.run("status")
    text = " ".join(assert_two_lines(finished))
    for word in words:
        assert word in text
    assert SECRET not in finished.all


def test_a_missing_dsn_says_where_it_can_be_set(project: Project) -> None:
    error, remedy = assert_two_lines(project.run("status"))
    assert "source" in error
    assert "WAL2LAKE_SOURCE" in remedy


def test_the_environment_overrides_the_file(project: Project, database: Database) -> None:
    project.configure("postgresql://postgres@127.0.0.1:1/wrong")
    finished = project.run("status", "--json", env={"WAL2LAKE_SOURCE__DSN": database.dsn})
    assert finished.code == 0, finished.all


def test_wrong_usage_is_exit_2_without_a_traceback(project: Project) -> None:
    finished = project.run("run", "--twice")
    assert finished.code == 2
    assert "Traceback" not in finished.all


def test_a_traceback_is_shown_only_with_debug(project: Project) -> None:
    project.configure(f"postgresql://postgres:{SECRET}@127.0.0.1:1/shop")
    finished = project.run("--debug", "status")
    assert finished.code == 1
    assert "Traceback" in finished.err
    assert SECRET not in finished.all
