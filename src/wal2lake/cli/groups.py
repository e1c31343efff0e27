"""`wal2lake groups`: tables that share one slot, beside those that the configuration groups."""

from __future__ import annotations

from typing import Annotated

import typer

from .failure import EXIT_FAILED
from .invocation import AsJson, invocation, output
from .output import ConsoleOutput
from .tables import require_names

app = typer.Typer(
    help="Groups of tables, each with a slot of its own.",
    epilog="Example: wal2lake groups list --json",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and underscores.")]


@app.command("list", epilog="Example: wal2lake groups list --json")
def list_(context: typer.Context, json: AsJson = False) -> None:
    """List the groups: where each comes from, whether it is to run, and who runs it."""
    output(json).groups(invocation(context).mirror().groups())


@app.command(epilog="Example: wal2lake groups create sales --tables 'sales.*' --exclude sales.tmp")
def create(
    context: typer.Context,
    name: Name,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--tables",
            "-t",
            metavar="PATTERN",
            help="A name or pattern, may be repeated; none: tables are moved to it later.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="A name or pattern left out.")
    ] = None,
    flush_interval: Annotated[
        float | None,
        typer.Option(
            "--flush-interval", metavar="SECONDS", min=0.05, help="Seconds between manifests of the change log."
        ),
    ] = None,
    flush_bytes: Annotated[
        int | None,
        typer.Option(
            "--flush-bytes", metavar="BYTES", min=1024 * 1024, help="Bytes after which a manifest is written sooner."
        ),
    ] = None,
) -> None:
    """Make a group. It is kept in the state store; a run that is active takes it up without a restart."""
    from ..state import GroupSpec

    require_names([*(tables or []), *(exclude or [])])
    spec = GroupSpec(name, True, tuple(tables or []), tuple(exclude or []), flush_interval, flush_bytes)
    invocation(context).mirror().create_group(spec)
    ConsoleOutput().done(f"made group {name}; the active run takes it up, or the next")


@app.command(epilog="Example: wal2lake groups drop sales")
def drop(context: typer.Context, name: Name) -> None:
    """Drop a group that a command made, or that is no longer configured: its slot, publication and change log.

    Its lake tables stay.
    """
    if invocation(context).mirror().drop_group(name):
        ConsoleOutput().done(f"dropped group {name} with its slot and publication; its lake tables stay")
    else:
        ConsoleOutput().done(f"group {name} is to be dropped by the run that is active, which has not done it yet")
        raise typer.Exit(EXIT_FAILED)


@app.command(epilog="Example: wal2lake groups enable sales")
def enable(context: typer.Context, name: Name) -> None:
    """Have a group run again, from where it stopped."""
    invocation(context).mirror().enable_group(name)
    ConsoleOutput().done(f"group {name} is run by the active run, or by the next")


@app.command(epilog="Example: wal2lake groups disable sales")
def disable(context: typer.Context, name: Name) -> None:
    """Stop a group. Its slot stays and makes PostgreSQL keep all WAL from here on: not for long."""
    invocation(context).mirror().enable_group(name, enabled=False)
    ConsoleOutput().done(
        f"group {name} stops. Its slot stays, so that nothing is lost, and holds WAL on the server until it is enabled"
    )
