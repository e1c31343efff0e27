"""Errors for people: two lines on stderr, `Error:` and `Try:`; a traceback only with --debug."""

from __future__ import annotations

import traceback

from rich.console import Console
from rich.text import Text

from ..errors import advise
from .logs import without_passwords

EXIT_FAILED = 1


def show(message: str, remedy: str, console: Console) -> None:
    console.print(Text("Error: ", style="bold red").append(without_passwords(message), style="default"), soft_wrap=True)
    console.print(Text("Try: ", style="bold").append(without_passwords(remedy), style="not bold"), soft_wrap=True)


def show_error(error: BaseException, console: Console, debug: bool) -> None:
    """Show an error. The text of other libraries' errors may hold row values, so only their class is shown."""
    if debug:
        console.print(without_passwords("".join(traceback.format_exception(error))), soft_wrap=True)
    advice = advise(error)
    show(advice.message, advice.remedy, console)
