"""The command `wal2lake`. Each command loads the configuration, asks the `Mirror` and hands the result to an `Output`.

Anything slow to import is imported inside the command that needs it: `status`, `check` and `tables` never load Spark.
Exit codes: 0 done, 1 an error or something that blocks, 2 wrong usage, 130 ended by a second Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from ..errors import ConfigError
from . import failure, groups, logs, settings, tables
from .invocation import AsJson, Invocation, invocation, output
from .output import ConsoleOutput, Output, about, console, status_view
from .stopping import until_stopped

if TYPE_CHECKING:
    from ..mirror import Mirror, OnceResult

WATCH_SECONDS = 1.0


app = typer.Typer(
    name="wal2lake",
    help="PostgreSQL tables, live and exact, as lake tables.",
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
        app(args=arguments, obj=given)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        # The reader of a pipe has gone; the interpreter must not fail again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failure.EXIT_FAILED
    except Exception as error:
        failure.show_error(error, console(stderr=True), given.debug)
        return failure.EXIT_FAILED
    return 0


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
        typer.Option("--config", "-c", metavar="FILE", help="The configuration file; wal2lake.toml if there is one."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Log more, and show where an error comes from.")] = False,
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented configuration file."""
    from ..config import DEFAULT_FILE
    from .template import config_file

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


def _write_private(file: Path, text: str) -> None:
    """Write a file that nobody else can read: a password will be in it."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as opened:
        os.fchmod(fd, 0o600)
        opened.write(text)


@app.command(epilog="Example: wal2lake -c shop.toml check --json")
def check(
    context: typer.Context,
    json: AsJson = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print a script for psql instead, with all that SQL can fix.")
    ] = False,
) -> None:
    """Show what blocks a run, object by object, with the fix. Exit 1 if anything does."""
    from ..preflight import collect as preflight
    from ..preflight.checks import script

    findings = preflight.check(invocation(context).config())
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
        bool, typer.Option("--once", help="Bring every table to the position that PostgreSQL has now, then exit.")
    ] = False,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="GROUP", help="Run this group only; may be repeated. None: all."),
    ] = None,
    resync_on_gap: Annotated[
        bool,
        typer.Option(
            "--resync-on-gap",
            help="When the slot was lost: apply what was captured, then re-copy the tables without being asked.",
        ),
    ] = False,
) -> None:
    """Mirror until stopped. Ctrl-C and SIGTERM stop cleanly; the next run goes on from there.

    With --once it exits 0 only if every table reached the position; the others are named, with the reason.
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
        failure.show("stopped before it was known that every table is up to date", "run the same command again", errors)
    if stopped or not result.ok:
        raise typer.Exit(failure.EXIT_FAILED)
    out.done(f"{len(result.reached)} tables are up to date")


@app.command(epilog="Example: wal2lake -c shop.toml status --watch")
def status(
    context: typer.Context,
    json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again each second, until Ctrl-C.")] = False,
) -> None:
    """Show how far each group and table is, and what is wrong."""
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
        list[str] | None, typer.Argument(metavar="TABLE", help="Names, as schema.table; none: every table.")
    ] = None,
    json: AsJson = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Earlier changes to begin with.")
    ] = 10,
    follow: Annotated[bool, typer.Option(help="Go on with each new change, until Ctrl-C.")] = True,
) -> None:
    """Show the changes as they are captured, with their values."""
    tables.require_names(names)
    mirror, out = invocation(context).mirror(), output(json, series=True)

    def show(stop: threading.Event) -> None:
        for change in mirror.tail(names or [], lines, stop if follow else None):
            out.change(change)
            if stop.is_set():
                return

    until_stopped(show)


@app.command(epilog="Example: wal2lake -c shop.toml teardown --yes")
def teardown(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    other: Annotated[
        bool, typer.Option("--other", help="Drop what was made for another lake, which is gone for good.")
    ] = False,
) -> None:
    """Drop what wal2lake made in PostgreSQL: slots, publications and its schema. The lake stays."""
    mirror = invocation(context).mirror()
    question = "Drop the slots, publications and the schema wal2lake in the source database?"
    if not yes and not sys.stdin.isatty():
        raise ConfigError(field="teardown", cause="it asks first, and there is no terminal", allowed="add --yes")
    if yes or typer.confirm(question, err=True):
        mirror.teardown(other)
        ConsoleOutput().done("dropped what wal2lake made in the source database; the lake stays as it is")
    else:
        ConsoleOutput().done("nothing was changed")


@app.command(epilog="Example: wal2lake demo --seconds 60")
def demo(
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="N", min=1, help="Stop by itself; without it, Ctrl-C stops.")
    ] = None,
) -> None:
    """Mirror a live shop database, made for the occasion, and compare every row at the end."""
    from ..demo import run_demo

    if not until_stopped(lambda stop: run_demo(seconds, stop)):
        raise typer.Exit(failure.EXIT_FAILED)
