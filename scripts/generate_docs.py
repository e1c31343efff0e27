"""Writes the reference parts of docs/ from the code: the configuration, the command line, the type table.

    python scripts/generate_docs.py            write
    python scripts/generate_docs.py --check    exit 1 if a page is not up to date

A page keeps its own words; what stands between its two markers is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from wal2lake.cli.app import app
from wal2lake.cli.template import HEADINGS, Option, config_file, heading, options, purpose, toml
from wal2lake.config import SECTIONS, variables
from wal2lake.pgtypes import PgType, lake_type

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN = "<!-- begin: written by scripts/generate_docs.py -->"
END = "<!-- end -->"

ARRAYS = {1007: 23, 1009: 25, 1231: 1700, 1185: 1184}
TYPES = (
    ("boolean", 16, -1, 0), ("smallint", 21, -1, 0), ("integer", 23, -1, 0), ("bigint", 20, -1, 0),
    ("real", 700, -1, 0), ("double precision", 701, -1, 0),
    ("numeric(10,2)", 1700, (10 << 16 | 2) + 4, 0), ("numeric(38,0)", 1700, (38 << 16) + 4, 0),
    ("numeric(5,-2)", 1700, (5 << 16 | 0x7FE) + 4, 0), ("numeric(50,2)", 1700, (50 << 16 | 2) + 4, 0),
    ("numeric", 1700, -1, 0),
    ("text", 25, -1, 0), ("varchar(n)", 1043, 14, 0), ("char(n)", 1042, 14, 0), ("uuid", 2950, -1, 0),
    ("json", 114, -1, 0), ("jsonb", 3802, -1, 0), ("xml", 142, -1, 0), ("bytea", 17, -1, 0),
    ("date", 1082, -1, 0), ("time", 1083, -1, 0), ("timetz", 1266, -1, 0), ("timestamp", 1114, -1, 0),
    ("timestamptz", 1184, -1, 0), ("interval", 1186, -1, 0), ("money", 790, -1, 0), ("inet", 869, -1, 0),
    ("bit(n)", 1560, 8, 0), ("int4range", 3904, -1, 0), ("tsvector", 3614, -1, 0),
    ("an enum, a composite type, a type of an extension", 99999, -1, 0),
    ("integer[]", 1007, -1, 1), ("text[]", 1009, -1, 1), ("numeric(10,2)[]", 1231, (10 << 16 | 2) + 4, 1),
    ("timestamptz[]", 1185, -1, 1), ("integer[][]", 1007, -1, 2),
)  # fmt: skip


def configuration() -> Iterator[str]:
    yield from ("## All keys", "")
    for section in SECTIONS:
        yield from (f"### `{heading(section)}`", "", purpose(section), "")
        yield from ("| key | value | default | |", "|---|---|---|---|")
        for option in options(section):
            kind = option.type.replace("|", "\\|")
            yield f"| `{option.key}` | {kind} | {_default(option)} | {option.description} |"
        yield ""
    yield from ("## Environment variables", "")
    yield from (f"- `{name}`" for name in variables())
    yield from ("", "## The file that `wal2lake init` writes", "", "```toml", config_file().rstrip(), "```")


def _default(option: Option) -> str:
    if option.required:
        return "must be set" if option.section not in HEADINGS else "must be set in each"
    return "none" if option.default is None else f"`{toml(option.default)}`"


def commands() -> Iterator[str]:
    root: Any = typer.main.get_command(app)
    yield from ("## Options before the command", "")
    yield from _parameters(root)
    for name, command in root.commands.items():
        below = getattr(command, "commands", None)
        for path, leaf in [(f"{name} {part}", leaf) for part, leaf in below.items()] if below else [(name, command)]:
            yield from (f"## `wal2lake {path}`", "", " ".join(leaf.help.split()), "")
            yield from _parameters(leaf)
            yield from ("```", leaf.epilog.removeprefix("Example: "), "```", "")


def _parameters(command: Any) -> Iterator[str]:
    shown = [parameter for parameter in command.params if "--help" not in parameter.opts]
    if not shown:
        return
    yield from ("| | |", "|---|---|")
    for parameter in shown:
        if parameter.param_type_name == "argument":
            several = "..." if parameter.nargs == -1 else ""
            yield f"| `{parameter.metavar}{several}` | {parameter.help} |"
        else:
            value = "" if parameter.is_flag else f" {parameter.metavar}"
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            yield f"| `{names}{value}` | {parameter.help} |"
    yield ""


def types() -> Iterator[str]:
    known = {array: PgType(array, "array", element=element) for array, element in ARRAYS.items()}
    yield from ("| PostgreSQL | lake | Spark SQL |", "|---|---|---|")
    for name, oid, typmod, dims in TYPES:
        lake = lake_type(oid, typmod, dims, known)
        yield f"| {name} | `{lake}` | `{lake.spark}` |"


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "configuration.md": configuration,
    "cli.md": commands,
    "types.md": types,
}


def page(name: str) -> str:
    """A page as it should be."""
    before, begin, rest = (DOCS / name).read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"docs/{name} lacks its markers: {BEGIN} and {END}")
    made = "\n".join(PAGES[name]()).rstrip()
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    stale = [name for name in PAGES if page(name) != (DOCS / name).read_text("utf-8")]
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"docs/{name} is not up to date; run: python scripts/generate_docs.py\n")
        return int(bool(stale))
    for name in stale:
        (DOCS / name).write_text(page(name), "utf-8")
        sys.stderr.write(f"wrote docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
