"""Writes the reference parts of docs/ from the code: the configuration, the command line, types, the lifecycle.

    python scripts/generate_docs.py            write
    python scripts/generate_docs.py --check    exit 1 if a page is not up to date

A page keeps its own words; what stands between its two markers is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import typer.main

from wal2lake.cli.app import app
from wal2lake.cli.template import HEADINGS, Option, config_file, heading, options, purpose, toml
from wal2lake.config import SECTIONS, variables
from wal2lake.state.events import EVENTS, EventRule
from wal2lake.state.lifecycle import VARIANTS, AtSource, needs_copy, title
from wal2lake.types import STRING, TYPES, LakeType, PgType, binary_reader, lake_type, unfit_words
from wal2lake.types.decimals import NUMERIC, typmod
from wal2lake.types.family import Scalar
from wal2lake.types.numbers import INT4
from wal2lake.types.text import TEXT
from wal2lake.types.time import TIMESTAMPTZ

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN = "<!-- begin: written by scripts/generate_docs.py -->"
END = "<!-- end -->"

ARRAYS = (
    ("integer[]", INT4, -1, 1), ("text[]", TEXT, -1, 1), ("numeric(10,2)[]", NUMERIC, typmod(10, 2), 1),
    ("timestamptz[]", TIMESTAMPTZ, -1, 1), ("integer[][]", INT4, -1, 2),
)  # fmt: skip
"""examples of arrays: name, element type and its typmod, dimensions"""


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
    """One row for neighbours of a family that have the same facts."""
    yield from ("| PostgreSQL | lake | Spark SQL | binary stream | refused values |", "|---|---|---|---|---|")
    for family in TYPES.families:
        named = [(name, _facts(scalar, at)) for scalar in family.scalars for name, at in _shown(scalar)]
        for facts, same in groupby(named, key=itemgetter(1)):
            yield f"| {', '.join(name for name, _ in same)} | {facts} |"
    yield f"| an enum, a composite type, a type of an extension, any other type | {_carried(STRING)} |"
    for name, element, at, dims in ARRAYS:
        known = {1: PgType(1, "array", element=element)}
        yield f"| {name} | {_carried(lake_type(1, at, dims, known))} |"


def _shown(scalar: Scalar) -> Iterable[tuple[str, int]]:
    return scalar.shown.items() or [(scalar.name, -1)]


def _facts(scalar: Scalar, typmod: int) -> str:
    lake = scalar.lake_type(typmod)
    return _carried(lake, binary_reader(scalar.oid, typmod, lake) is not None)


def _carried(lake: LakeType, binary: bool = False) -> str:
    return f"`{lake}` | `{lake.spark}` | {'yes' if binary else 'no'} | {unfit_words(lake)}"


def lifecycle() -> Iterator[str]:
    yield from ("## States", "")
    for state in VARIANTS:
        yield from (f"### {title(state)}", "", _reflowed(state.__doc__), "")
    yield from ("## What is seen at the source", "", *_lines(AtSource.__doc__))
    yield from ("## When a table is copied", "", *_lines(needs_copy.__doc__))
    yield from ("## Transitions", "", "| from | event | to | who causes it |", "|---|---|---|---|")
    for before in VARIANTS:
        for event in EVENTS:
            if event.moves.get(before, before) is not before:
                yield f"| {title(before)} | `{event.name}` | {title(event.moves[before])} | {event.by} |"
    yield from ("", "## Events", "", "| event | | who causes it | from | to |", "|---|---|---|---|---|")
    yield from (_event(event) for event in EVENTS)


def _event(event: EventRule) -> str:
    targets = {after for before, after in event.moves.items() if after is not before}
    to = ", ".join(title(target) for target in VARIANTS if target in targets) or "stays"
    sources = ", ".join(title(state) for state in VARIANTS if state in event.moves)
    return f"| `{event.name}` | {event.meaning} | {event.by} | {sources} | {to} |"


def _lines(doc: str | None) -> list[str]:
    """The lines of a docstring, with an empty one before each list."""
    lines = [line.strip() for line in (doc or "").splitlines()]
    listed = [line.startswith("- ") for line in lines]
    after_text = [False, *(bool(line) and not item for line, item in zip(lines, listed, strict=True))]
    gaps = [item and text for item, text in zip(listed, after_text, strict=False)]
    return [part for line, gap in zip(lines, gaps, strict=True) for part in (["", line] if gap else [line])]


def _reflowed(doc: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (doc or "").split("\n\n"))


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "configuration.md": configuration,
    "cli.md": commands,
    "types.md": types,
    "lifecycle.md": lifecycle,
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
