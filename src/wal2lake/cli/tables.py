"""`wal2lake tables`: what is wanted of single tables. A run that is active does it at once, otherwise the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ..schema import TableId
from .invocation import AsJson, invocation, output
from .output import ConsoleOutput

app = typer.Typer(
    help="The mirrored tables.",
    epilog="Example: wal2lake tables list --json",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Names = Annotated[list[str], typer.Argument(metavar="TABLE", help="Names, as schema.table.")]
BY_WHOM = "by the active run, or by the next"


@app.command("list", epilog="Example: wal2lake -c shop.toml tables list --json")
def list_(context: typer.Context, json: AsJson = False) -> None:
    """List the mirrored tables and how they stand."""
    output(json).tables(invocation(context).mirror().tables())


@app.command(epilog="Example: wal2lake tables add archive.orders --group default --as history.orders")
def add(
    context: typer.Context,
    tables: Names,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="The group that mirrors them.")
    ] = None,
    no_copy: Annotated[
        bool,
        typer.Option(
            "--no-copy",
            help="Begin at the current position with an empty lake table, or with the one of ours that is there: rows "
            "that nobody changes from now on are never in it. For tables that you fill by other means.",
        ),
    ] = False,
    target: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Name of the lake table.")] = None,
) -> None:
    """Mirror tables beside those that the configuration names, or again after a removal. Others are not disturbed."""
    require_names(tables)
    require_names([target] if target else [])
    added = invocation(context).mirror().add(tables, group, not no_copy, target)
    _done(f"added {BY_WHOM}", added)


@app.command(epilog="Example: wal2lake tables remove public.old --drop-lake")
def remove(
    context: typer.Context,
    tables: Names,
    drop_lake: Annotated[bool, typer.Option("--drop-lake", help="Drop their lake tables too.")] = False,
) -> None:
    """Mirror tables no more, even if a pattern of the configuration matches them. Their lake tables stay."""
    require_names(tables)
    removed = invocation(context).mirror().remove(tables, drop_lake)
    _done(f"removed {BY_WHOM}", removed)
    if drop_lake:
        ConsoleOutput().done(f"their lake tables are dropped {BY_WHOM}")


@app.command(epilog="Example: wal2lake tables pause public.orders")
def pause(context: typer.Context, tables: Names) -> None:
    """Leave tables as they are until resumed. Their changes are kept in the change log, which grows; others go on."""
    require_names(tables)
    _done(f"paused {BY_WHOM}", invocation(context).mirror().pause(tables))


@app.command(epilog="Example: wal2lake tables resume public.orders")
def resume(context: typer.Context, tables: Names) -> None:
    """Go on with paused tables from where they were, and try those at once that wait after an error."""
    require_names(tables)
    _done(f"resumed {BY_WHOM}", invocation(context).mirror().resume(tables))


@app.command(epilog="Example: wal2lake -c shop.toml tables resync public.orders")
def resync(
    context: typer.Context,
    tables: Annotated[list[str] | None, typer.Argument(metavar="TABLE", help="Names, as schema.table.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Every table.")] = False,
    together: Annotated[
        bool, typer.Option("--together", help="At one common snapshot, instead of each at its own.")
    ] = False,
) -> None:
    """Copy tables again. The new copy replaces the old one in one commit: readers see the one or the other."""
    if bool(tables) == all:
        raise typer.BadParameter("name the tables, or give --all")
    require_names(tables)
    asked = invocation(context).mirror().resync(tables or [], all=all, together=together)
    if asked:
        _done(f"re-copied {BY_WHOM}", asked)
    else:
        ConsoleOutput().done("no table is mirrored yet, so there is nothing to re-copy")


@app.command(epilog="Example: wal2lake tables move public.orders --group sales")
def move(
    context: typer.Context,
    tables: Names,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group that is to mirror them.")],
) -> None:
    """Mirror tables in another group. No re-copy is made where the streams of both groups meet exactly."""
    require_names(tables)
    _done(f"moved to group {group}, when both groups run", invocation(context).mirror().move(tables, group))


@app.command(epilog="Example: wal2lake tables history public.orders --json")
def history(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A name, as schema.table.")],
    json: AsJson = False,
) -> None:
    """Show what happened to a table: its last transitions and errors, who set them and when."""
    require_names([table])
    output(json).history(invocation(context).mirror().history(table))


def require_names(tables: Sequence[str] | None) -> None:
    for name in tables or []:
        try:
            TableId.parse(name)
        except ValueError:
            raise typer.BadParameter(f"{name!r} is not a table name; write it as schema.table") from None


def _done(what: str, tables: Sequence[str]) -> None:
    ConsoleOutput().done(f"{what}: {', '.join(tables)}")
