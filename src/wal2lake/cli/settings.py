"""`wal2lake config`: the effective configuration, each value with its origin."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from .invocation import AsJson, invocation, output

if TYPE_CHECKING:
    from ..config import GroupConfig

app = typer.Typer(
    help="Show the configuration.",
    epilog="Example: wal2lake -c shop.toml config show --json",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def options() -> None:
    """Show the configuration."""


@app.command(epilog="Example: wal2lake -c shop.toml config show --json")
def show(context: typer.Context, json: AsJson = False) -> None:
    """Show each effective setting and its origin: default, file, environment or state store. Secrets are masked.

    Groups made by commands are read from the state store; if it can't be reached, a message on stderr says so.
    """
    from ..config import read_file, settings
    from ..errors import Wal2LakeError
    from .output import console

    given = invocation(context)
    config = given.config()
    stored: Sequence[GroupConfig] = ()
    try:
        stored = given.mirror().stored_groups()
    except Wal2LakeError as error:
        console(stderr=True).print(f"groups of the state store are not shown: {error}", soft_wrap=True)
    output(json).settings(settings(config, read_file(given.file), os.environ, stored))
