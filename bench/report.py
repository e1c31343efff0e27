"""The outcome for people (Markdown) and for programs (JSON), and the page in the documents that shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .model import Options, Section

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def markdown(machine: Mapping[str, Any], options: Options, sections: Sequence[Section], when: datetime) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    parts = [
        f"Measured on {when:%Y-%m-%d}, on {machine['cores']} cores ({machine['cpu']}) and {machine['memory_gb']:g} GB "
        f"of memory, {machine['system']}. {versions}.",
        f"Scale {options.scale:g}; pairs ran {options.repeat} times in alternation, medians are shown. "
        f"Load average before the run: {machine['load_before']:g}.",
    ]
    for section in sections:
        parts += [f"### {section.title}", _table(section)]
        if section.notes:
            parts.append("\n".join(f"- {note}" for note in section.notes))
    return "\n\n".join(parts) + "\n"


def _table(section: Section) -> str:
    lines = [section.header, tuple("---" for _ in section.header), *section.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_json(
    machine: Mapping[str, Any], options: Options, sections: Sequence[Section], when: datetime
) -> Path:  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{when:%Y-%m-%dT%H-%M-%S}.json"
    content = {
        "when": when.isoformat(timespec="seconds"), "machine": machine, "options": vars(options),
        "results": {section.name: section.figures for section in sections},
    }  # fmt: skip
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return file


def write_page(text: str, page: Path = PAGE) -> None:
    """Put the figures between the page's two markers; all else on it stays."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page.name} has no markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}{END}{after}", "utf-8")
