"""The command `wal2lake`. Each command loads the configuration, calls the `Mirror` and shows the result with `Output`.

Slow imports are made inside the commands that need them: `status`, `check` and `tables` never import Spark.
Exit codes: 0 success, 1 an error or a finding that blocks, 2 wrong usage, 130 ended by a second Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from typer.core import TyperArgument

from ..errors import ConfigError
from . import failure, groups, logs, settings, tables
from .invocation import AsJson, Invocation, invocation, output
from .output import ConsoleOutput, Output, about, console, status_view
from .stopping import until_stopped

if TYPE_CHECKING:
    from ..mirror import Mirror, OnceResult

WATCH_SECONDS = 1.0
DEFAULT_LINES = 10


class Format(StrEnum):
    NESTED = "nested"
    FLAT = "flat"


app = typer.Typer(
    name="wal2lake",
    help="Keep lake tables identical to PostgreSQL tables.",
    epilog="Example: wal2lake init, then edit wal2lake.toml, then: wal2lake check, then: wal2lake run",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tables.app, name="tables")
app.add_typer(groups.app, name="groups")
app.add_typer(settings.app, name="config")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = Invocation()
    try:
        with_plain_arguments(typer.main.get_command(app))(args=arguments, obj=given)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        # The reader of the pipe has closed it; the interpreter must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failure.EXIT_FAILED
    except Exception as error:
        failure.show_error(error, console(stderr=True), given.debug)
        return failure.EXIT_FAILED
    return 0


def with_plain_arguments(command: Any) -> Any:
    """The same command, whose help shows arguments without Python types; Typer has no setting for this."""
    for parameter in command.params:
        if isinstance(parameter, TyperArgument):
            parameter.__class__ = _PlainArgument
    for each in getattr(command, "commands", {}).values():
        with_plain_arguments(each)
    return command


class _PlainArgument(TyperArgument):
    def display_type_rich(self, ctx: Any) -> None:  # noqa: ARG002 - the signature is Typer's
        return None


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        ConsoleOutput().done(f"wal2lake {version('wal2lake')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Configuration file; default: wal2lake.toml if it exists."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log more, and show tracebacks of errors.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    given = context.find_object(Invocation) or context.ensure_object(Invocation)
    given.file, given.debug = config, debug
    logs.configure(console(stderr=True), debug)


@app.command(epilog="Example: wal2lake -c shop.toml init")
def init(
    context: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    role_sql: Annotated[
        bool, typer.Option("--role-sql", help="Write no file; print SQL for a DBA: a role that owns nothing.")
    ] = False,
    role: Annotated[
        str | None, typer.Option("--role", metavar="NAME", help="With --role-sql. Default: that of [source] dsn.")
    ] = None,
    capture: Annotated[
        str | None, typer.Option("--capture", metavar="MODE", help="With --role-sql: wal, poll, trigger, auto.")
    ] = None,
    service: Annotated[
        str, typer.Option("--service", metavar="NAME", help="With --role-sql: plain, rds, cloud-sql, azure, supabase.")
    ] = "plain",
) -> None:
    """Write a commented configuration file, or print the SQL for a least-privilege role."""
    from ..config import DEFAULT_FILE
    from .template import config_file

    if role_sql:
        sys.stdout.write(_role_sql(invocation(context), role, capture, service))
        return
    file = invocation(context).file or Path(DEFAULT_FILE)
    if file.exists() and not force:
        raise ConfigError(field=str(file), cause="already exists", allowed="overwrite it with: wal2lake init --force")
    try:
        _write_private(file, config_file())
    except OSError as error:
        raise ConfigError(
            field=str(file), cause=f"cannot be written: {error.strerror}", allowed="name another file with -c FILE"
        ) from None
    ConsoleOutput().done(f"wrote {file}: set [source] dsn in it, then run: wal2lake check")


def _role_sql(given: Invocation, role: str | None, capture: str | None, service: str) -> str:
    from ..config import DEFAULT_FILE
    from ..preflight import CAPTURES, Service, requested, role_script

    for option, value, known in (("--service", service, list(Service)), ("--capture", capture, CAPTURES)):
        if value is not None and value not in known:
            raise ConfigError(field=option, cause=f"{value!r} is not known", allowed=", ".join(known))
    there = given.file is not None or Path(DEFAULT_FILE).exists()
    return role_script(requested(given.config() if there else None, role, capture, Service(service)))


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read: it will hold a password."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as opened:
        os.fchmod(fd, 0o600)
        opened.write(text)


@app.command(epilog="Example: wal2lake -c shop.toml check --json")
def check(
    context: typer.Context,
    json: AsJson = False,
    sql: Annotated[
        bool,
        typer.Option("--sql", help="Print an SQL script for psql with all fixes that are SQL."),
    ] = False,
) -> None:
    """Show what blocks a run, per object, with the fix. Exit 1 if anything does."""
    from ..preflight import check as preflight
    from ..preflight import script

    findings = preflight(invocation(context).config())
    if sql:
        sys.stdout.write(script(findings))
    else:
        output(json).findings(findings)
    if any(finding.blocks for finding in findings):
        raise typer.Exit(failure.EXIT_FAILED)


@app.command(epilog="Example: wal2lake -c shop.toml run --once")
def run(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="Bring every table to PostgreSQL's current position, then exit.")
    ] = False,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="GROUP", help="Run only this group; repeatable. Default: all."),
    ] = None,
    resync_on_gap: Annotated[
        bool,
        typer.Option(
            "--resync-on-gap",
            help="If a slot was lost: apply what was captured, then re-copy the tables of the group.",
        ),
    ] = False,
) -> None:
    """Mirror until stopped. Ctrl-C and SIGTERM stop cleanly; the next run continues from there.

    With --once, exit 0 only if every table reached the position; the others are listed with the reason.
    """
    from ..mirror import RunOptions
    from .progress import copy_progress

    options = RunOptions(tuple(group or []), resync_on_gap)
    errors = console(stderr=True)
    logs.configure(errors, invocation(context).debug)
    with copy_progress(errors) as progress:
        mirror = invocation(context).mirror(progress)
        if not once:
            until_stopped(lambda stop: mirror.run(stop, options), exit_code=0)
            return
        result, stopped = until_stopped(
            lambda stop: (mirror.run_once(stop, options), stop.is_set()), exit_code=failure.EXIT_FAILED
        )
    _tell_once(result, stopped)


def _tell_once(result: OnceResult, stopped: bool) -> None:
    out, errors = ConsoleOutput(), console(stderr=True)
    out.tables((*result.reached, *result.missed))
    for table in result.missed:
        reason = table.error or f"did not reach the position, it is {table.state}"
        failure.show(about(table.name, reason), table.remedy or "run the same command again", errors)
    if stopped:
        failure.show("stopped before every table was known to be up to date", "run the same command again", errors)
    if stopped or not result.ok:
        raise typer.Exit(failure.EXIT_FAILED)
    out.done(f"{len(result.reached)} tables are up to date")


@app.command(epilog="Example: wal2lake -c shop.toml status --watch")
def status(
    context: typer.Context,
    json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")] = False,
) -> None:
    """Show positions, states and errors of groups and tables."""
    mirror = invocation(context).mirror()
    if not watch:
        output(json).status(mirror.status())
    elif json or not sys.stdout.isatty():
        until_stopped(lambda stop: _print_each_second(mirror, output(json, series=True), stop))
    else:
        until_stopped(lambda stop: _live(mirror, stop))


def _print_each_second(mirror: Mirror, out: Output, stop: threading.Event) -> None:
    while not stop.is_set():
        out.status(mirror.status())
        stop.wait(WATCH_SECONDS)


def _live(mirror: Mirror, stop: threading.Event) -> None:
    with Live(status_view(mirror.status()), console=console(), auto_refresh=False) as live:
        while not stop.wait(WATCH_SECONDS):
            live.update(status_view(mirror.status()), refresh=True)


@app.command(epilog="Example: wal2lake -c shop.toml tail public.orders --json")
def tail(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="Names, as schema.table; default: all tables.")
    ] = None,
    json: AsJson = False,
    form: Annotated[
        Format | None,
        typer.Option("--format", metavar="FORMAT", help="Print JSON: nested, as with --json, or flat, for programs."),
    ] = None,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines", "-n", metavar="N", min=0, help="Number of earlier changes to show first; 10 if not given."
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help="Begin at: beginning, now, an LSN, or behind the _position of an event."
        ),
    ] = None,
    most: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="Stop after N changes.")] = None,
    ops: Annotated[
        list[str] | None, typer.Option("--op", metavar="OP", help="Only insert, update, delete, truncate; repeatable.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group. Default: all.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="Continue with new changes, until Ctrl-C.")] = True,
) -> None:
    """Show captured changes with their values."""
    tables.require_names(names)
    form = form or (Format.NESTED if json else None)
    positioned = form is Format.FLAT or any((begin, most, ops, group))
    if lines is not None and positioned:
        raise ConfigError(field="--lines", cause="shows the last changes of all", allowed="use --from instead")
    mirror = invocation(context).mirror()
    from ..observe import EventQuery

    query = EventQuery(names or (), begin or "now", group, ops or (), most, follow)

    def show_lines(stop: threading.Event) -> None:
        for each in mirror.read_events(query, stop).lines():
            sys.stdout.buffer.write(each)
            sys.stdout.buffer.flush()
            if stop.is_set():
                return

    def show(stop: threading.Event) -> None:
        out = output(form is not None, series=True)
        if positioned:
            changes = mirror.read_events(query, stop).changes()
        else:
            changes = mirror.tail(names or (), DEFAULT_LINES if lines is None else lines, stop if follow else None)
        for change in changes:
            out.change(change)
            if stop.is_set():
                return

    until_stopped(show_lines if form is Format.FLAT else show)


@app.command(epilog="Example: wal2lake -c shop.toml teardown --yes")
def teardown(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    other: Annotated[
        bool, typer.Option("--other", help="Drop what was made for another lake that does not exist any more.")
    ] = False,
) -> None:
    """Drop the slots, the publications and the schema that wal2lake made in PostgreSQL. The lake stays."""
    mirror = invocation(context).mirror()
    question = "Drop the slots, publications and the schema wal2lake in the source database?"
    if not yes and not sys.stdin.isatty():
        raise ConfigError(field="teardown", cause="it asks for confirmation on a terminal", allowed="add --yes")
    if yes or typer.confirm(question, err=True):
        mirror.teardown(other)
        ConsoleOutput().done("dropped what wal2lake made in the source database; the lake stays as it is")
    else:
        ConsoleOutput().done("nothing was changed")


@app.command(epilog="Example: wal2lake demo --seconds 60")
def demo(
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="N", min=1, help="Stop after N seconds; default: at Ctrl-C.")
    ] = None,
) -> None:
    """Mirror a temporary shop database under load, and compare every row at the end."""
    from ..demo import run_demo

    if not until_stopped(lambda stop: run_demo(seconds, stop)):
        raise typer.Exit(failure.EXIT_FAILED)
