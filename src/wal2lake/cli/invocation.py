"""The global options, and what every command makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from .output import ConsoleOutput, JsonOutput, Output

if TYPE_CHECKING:
    from ..config import Config
    from ..mirror import Mirror
    from ..observe import Progress

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass
class Invocation:
    """The global options, which stand before the command."""

    file: Path | None = None
    debug: bool = False

    def config(self) -> Config:
        from ..config import load_config

        return load_config(self.file)

    def mirror(self, progress: Progress | None = None) -> Mirror:
        config = self.config()
        from ..mirror import Mirror

        return Mirror(config, progress=progress)


def invocation(context: typer.Context) -> Invocation:
    return cast(Invocation, context.find_object(Invocation))


def output(json: bool, series: bool = False) -> Output:
    return JsonOutput(series) if json else ConsoleOutput()
