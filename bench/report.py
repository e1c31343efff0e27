"""The outcome for people (Markdown, plots) and for programs (JSON), beside the figures of the run before.

A figure is the same as an earlier one when its name, load and peer are the same and the run had the same size; the
newest file in bench/results that has it counts, and bench/baseline.json where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from . import plots
from .model import Options, Ratio, Section, Series

RESULTS = Path(__file__).parent / "results"
BASELINE = Path(__file__).parent / "baseline.json"
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
PLOT_PREFIX = "bench"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
SUMMARY = ("figure", "load", "wal2lake", "peer", "ratio", "target", "met", "wal2lake before")

Identity = tuple[str, str, str]


@dataclass(frozen=True)
class Outcome:
    """One run of the benchmark."""

    machine: Mapping[str, Any]
    options: Options
    sections: tuple[Section, ...]
    when: datetime

    @property
    def ratios(self) -> list[Ratio]:
        return [ratio for section in self.sections for ratio in section.ratios]

    @property
    def series(self) -> list[Series]:
        return [series for section in self.sections for series in section.series]


@dataclass(frozen=True)
class Earlier:
    """Our figure in an earlier run."""

    ours: float
    day: str


def previous(outcome: Outcome, results: Path = RESULTS, baseline: Path = BASELINE) -> dict[Identity, Earlier]:
    """The newest earlier figures of runs of the same size."""
    # Files have their run's time to the second: this run's own file is not an earlier one.
    began = outcome.when.replace(microsecond=0)
    found: dict[Identity, Earlier] = {}
    for file in [baseline, *sorted(results.glob("*.json"))]:
        content = json.loads(file.read_text("utf-8")) if file.exists() else {}
        options = content.get("options", {})
        same_size = (options.get("scale"), options.get("full", False)) == (outcome.options.scale, outcome.options.full)
        if same_size and datetime.fromisoformat(content["when"]) < began:
            for ratio in content.get("ratios", ()):
                identity = ratio["name"], ratio["load"], ratio["peer_name"]
                found[identity] = Earlier(ratio["ours"], content["when"][:10])
    return found


def markdown(outcome: Outcome, before: Mapping[Identity, Earlier], images: Mapping[str, str] | None = None) -> str:
    """All figures; `images` are the plots' addresses by their names."""
    machine, options = outcome.machine, outcome.options
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    size = "bench-full" if options.full else "bench"
    parts = [
        f"Measured on {outcome.when:%Y-%m-%d}, on {machine['cores']} cores ({machine['cpu']}) and "
        f"{machine['memory_gb']:g} GB of memory, {machine['system']}. {versions}.",
        f"`make {size}`, scale {options.scale:g}; pairs ran {options.repeat} times in alternation, medians are shown. "
        f"Load average before the run: {machine['load_before']:g}.",
    ]
    if outcome.ratios:
        parts += ["### Summary", _table(SUMMARY, (_summary(ratio, before) for ratio in outcome.ratios))]
    for name, address in (images or {}).items():
        parts.append(f"![{plots.PLOTS[name].title}]({address})")
    for section in outcome.sections:
        parts += [f"### {section.title}", _table(section.header, section.rows)]
        if section.notes:
            parts.append("\n".join(f"- {note}" for note in section.notes))
    return "\n\n".join(parts) + "\n"


def _summary(ratio: Ratio, before: Mapping[Identity, Earlier]) -> tuple[str, ...]:
    peer = "" if ratio.peer is None else f"{ratio.peer_name}: {_amount(ratio.peer, ratio.unit)}"
    target = "" if ratio.target is None else f"{'≤' if ratio.at_most else '≥'} {_number(ratio.target)}"
    met = "" if ratio.met is None else "yes" if ratio.met else "**no**"
    earlier = before.get(ratio.identity)
    was = "" if earlier is None else f"{_amount(earlier.ours, ratio.unit)} ({earlier.day})"
    return ratio.name, ratio.load, _amount(ratio.ours, ratio.unit), peer, _number(ratio.value), target, met, was


def _amount(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}".strip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, tuple("---" for _ in header), *rows])


def write(outcome: Outcome, directory: Path = RESULTS) -> list[Path]:
    """The JSON file of a run, its Markdown and its plots."""
    directory.mkdir(exist_ok=True)
    stem = f"{outcome.when:%Y-%m-%dT%H-%M-%S}"
    drawn = plots.draw(outcome.series, directory, stem)
    page = directory / f"{stem}.md"
    images = {name: file.name for name, file in drawn.items()}
    page.write_text(markdown(outcome, previous(outcome, directory), images), "utf-8")
    file = directory / f"{stem}.json"
    file.write_text(_json(outcome), "utf-8")
    return [file, page, *drawn.values()]


def write_docs(outcome: Outcome) -> list[Path]:
    """Put a run's figures and plots into the documents; a fresh clone measures itself against them."""
    drawn = plots.draw(outcome.series, DOCS, PLOT_PREFIX)
    write_page(markdown(outcome, previous(outcome), {name: file.name for name, file in drawn.items()}))
    BASELINE.write_text(_json(outcome, brief=True), "utf-8")
    return [PAGE, BASELINE, *drawn.values()]


def _json(outcome: Outcome, *, brief: bool = False) -> str:
    content = {
        "when": outcome.when.isoformat(timespec="seconds"), "machine": outcome.machine,
        "options": vars(outcome.options), "ratios": [asdict(ratio) for ratio in outcome.ratios],
    }  # fmt: skip
    if not brief:
        content["results"] = {section.name: section.figures for section in outcome.sections}
        content["series"] = [asdict(series) for series in outcome.series]
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write_page(text: str, page: Path = PAGE) -> None:
    """Put the figures between the page's two markers; all else on it stays."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page.name} has no markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}{END}{after}", "utf-8")
