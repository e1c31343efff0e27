"""`wal2lake groups`: tables that share one slot; groups made by commands, beside those of the configuration."""

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
    """List the groups: origin, state, tables, slot and the process that runs them."""
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
            help="Name or pattern of tables; repeatable. Default: none; move tables to it later.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="Name or pattern to leave out; repeatable.")
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
            "--flush-bytes", metavar="BYTES", min=1024 * 1024, help="Bytes of changes that trigger an earlier manifest."
        ),
    ] = None,
) -> None:
    """Create a group in the state store. An active run starts it without a restart."""
    from ..state import GroupSpec

    require_names([*(tables or []), *(exclude or [])])
    spec = GroupSpec(name, True, tuple(tables or []), tuple(exclude or []), flush_interval, flush_bytes)
    invocation(context).mirror().create_group(spec)
    ConsoleOutput().done(f"created group {name}; the active run starts it, or the next run")


@app.command(epilog="Example: wal2lake groups drop sales")
def drop(context: typer.Context, name: Name) -> None:
    """Drop a group that a command made or that is no longer configured, with its slot, publication and change log.

    Its lake tables stay.
    """
    if invocation(context).mirror().drop_group(name):
        ConsoleOutput().done(f"dropped group {name} with its slot and publication; its lake tables stay")
    else:
        ConsoleOutput().done(f"group {name} will be dropped by the active run, which has not done it yet")
        raise typer.Exit(EXIT_FAILED)


@app.command(epilog="Example: wal2lake groups enable sales")
def enable(context: typer.Context, name: Name) -> None:
    """Enable a group; it continues from where it stopped."""
    invocation(context).mirror().enable_group(name)
    ConsoleOutput().done(f"enabled group {name}: the active run starts it, or the next run")


@app.command(epilog="Example: wal2lake groups disable sales")
def disable(context: typer.Context, name: Name) -> None:
    """Stop a group. Its slot stays and holds all WAL on the server, so enable or drop it soon."""
    invocation(context).mirror().enable_group(name, enabled=False)
    ConsoleOutput().done(
        f"disabled group {name}. Its slot stays, so nothing is lost, and holds WAL on the server until it is enabled"
    )
