"""Write the reference pages of docs/ from the code: the configuration's keys and the commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from wal2lake.cli.app import app
from wal2lake.cli.template import Option, heading, options, purpose, toml
from wal2lake.config import SECTIONS

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Made by `make docs` from the code. -->"


def configuration_page() -> str:
    lines = [
        "# Configuration", NOTE, "",
        "`wal2lake.toml` in the working directory, or the file that `wal2lake -c FILE` names; `wal2lake init` writes "
        "one with comments. Each key can also be set in the environment: `[source] dsn` is `WAL2LAKE_SOURCE__DSN`, "
        "and the environment stands above the file.",
    ]  # fmt: skip
    for section in SECTIONS:
        lines += [
            "",
            f"## `{heading(section)}`",
            "",
            purpose(section),
            "",
            "| key | type | default | |",
            "|---|---|---|---|",
        ]
        lines += [_row(option) for option in options(section)]
    return "\n".join(lines) + "\n"


def _row(option: Option) -> str:
    default = "required" if option.required else "none" if option.default is None else f"`{toml(option.default)}`"
    return f"| `{option.key}` | {option.type} | {default} | {option.description} |"


def commands_page() -> str:
    lines = [
        "# Commands", NOTE, "",
        "Results go to stdout, progress and logs to stderr. An error is two lines, `Error:` and `Try:`, and a "
        "non-zero exit. SIGTERM and Ctrl-C stop cleanly.",
    ]  # fmt: skip
    for name, command in _walk("wal2lake", typer.main.get_command(app)):
        lines += ["", f"## `{name}`", "", (command.help or "").strip()]
        parameters = [p for p in command.params if p.name != "help"]
        if parameters:
            lines += ["", "| | |", "|---|---|"]
            lines += [f"| `{_usage(p)}` | {getattr(p, 'help', None) or ''} |" for p in parameters]
        if command.epilog:
            lines += ["", "Example: `" + command.epilog.removeprefix("Example: ") + "`"]
    return "\n".join(lines) + "\n"


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command and those below it. typer brings a click of its own, so they are told apart by what they have."""
    yield name, command
    for child, inner in getattr(command, "commands", {}).items():
        yield from _walk(f"{name} {child}", inner)


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return ", ".join(parameter.opts) + ("" if parameter.is_flag else f" {parameter.metavar or 'N'}")


def main() -> None:
    (DOCS / "configuration.md").write_text(configuration_page(), "utf-8")
    (DOCS / "commands.md").write_text(commands_page(), "utf-8")


if __name__ == "__main__":
    main()
