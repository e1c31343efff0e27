"""`wal2lake tables`: desired state of single tables. An active run applies it at once, otherwise the next run does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ..schema import TableId
from .invocation import AsJson, invocation, output
from .output import ConsoleOutput

app = typer.Typer(
    help="Mirrored tables.",
    epilog="Example: wal2lake tables list --json",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Names = Annotated[list[str], typer.Argument(metavar="TABLE", help="Names, as schema.table.")]
BY_WHOM = "by the active run, or by the next run"


@app.command("list", epilog="Example: wal2lake -c shop.toml tables list --json")
def list_(context: typer.Context, json: AsJson = False) -> None:
    """List the mirrored tables with their states."""
    output(json).tables(invocation(context).mirror().tables())


@app.command(epilog="Example: wal2lake tables add archive.orders --group default --as history.orders")
def add(
    context: typer.Context,
    tables: Names,
    group: Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Group of the tables.")] = None,
    no_copy: Annotated[
        bool,
        typer.Option(
            "--no-copy",
            help="Start at the current position with an empty lake table, or with its existing one: rows that do not "
            "change after this are never copied. For tables that are filled by other means.",
        ),
    ] = False,
    target: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Name of the lake table.")] = None,
) -> None:
    """Mirror tables beside those of the configuration, or again after a removal. Other tables are not affected."""
    require_names(tables)
    require_names([target] if target else [])
    added = invocation(context).mirror().add(tables, group, not no_copy, target)
    _done(f"added {BY_WHOM}", added)


@app.command(epilog="Example: wal2lake tables remove public.old --drop-lake")
def remove(
    context: typer.Context,
    tables: Names,
    drop_lake: Annotated[bool, typer.Option("--drop-lake", help="Drop their lake tables, too.")] = False,
) -> None:
    """Stop mirroring tables, even if the configuration names them. Their lake tables stay."""
    require_names(tables)
    removed = invocation(context).mirror().remove(tables, drop_lake)
    _done(f"removed {BY_WHOM}", removed)
    if drop_lake:
        ConsoleOutput().done(f"their lake tables are dropped {BY_WHOM}")


@app.command(epilog="Example: wal2lake tables pause public.orders")
def pause(context: typer.Context, tables: Names) -> None:
    """Stop applying changes to tables. Their changes are kept in the change log, which grows until they are resumed."""
    require_names(tables)
    _done(f"paused {BY_WHOM}", invocation(context).mirror().pause(tables))


@app.command(epilog="Example: wal2lake tables resume public.orders")
def resume(context: typer.Context, tables: Names) -> None:
    """Resume paused tables from where they were, and retry those that wait after an error at once."""
    require_names(tables)
    _done(f"resumed {BY_WHOM}", invocation(context).mirror().resume(tables))


@app.command(epilog="Example: wal2lake -c shop.toml tables resync public.orders")
def resync(
    context: typer.Context,
    tables: Annotated[list[str] | None, typer.Argument(metavar="TABLE", help="Names, as schema.table.")] = None,
    all: Annotated[bool, typer.Option("--all", help="All tables.")] = False,
    together: Annotated[
        bool, typer.Option("--together", help="At one common snapshot instead of one per table.")
    ] = False,
) -> None:
    """Re-copy tables. The new copy replaces the old one in one commit, so readers see either."""
    if bool(tables) == all:
        raise typer.BadParameter("name the tables, or give --all")
    require_names(tables)
    asked = invocation(context).mirror().resync(tables or [], all=all, together=together)
    if asked:
        _done(f"re-copied {BY_WHOM}", asked)
    else:
        ConsoleOutput().done("no table is mirrored yet, so nothing is re-copied")


@app.command(epilog="Example: wal2lake tables move public.orders --group sales")
def move(
    context: typer.Context,
    tables: Names,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The new group of the tables.")],
) -> None:
    """Move tables to another group, without a re-copy where the streams of both groups reach a common position."""
    require_names(tables)
    _done(f"moved to group {group}, as soon as both groups run", invocation(context).mirror().move(tables, group))


@app.command(epilog="Example: wal2lake tables history public.orders --json")
def history(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name, as schema.table.")],
    json: AsJson = False,
) -> None:
    """Show the events of a table: its latest state transitions and errors, when they happened and who caused them."""
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
