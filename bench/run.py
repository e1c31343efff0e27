"""The benchmark, in one run on one machine, from nothing.

    python -m bench.run [--only capture|copy|freshness] [--scale 0.1] [--seconds 60] [--write-docs]

Prints Markdown to stdout, progress to stderr, and writes bench/results/<date>.json. Every part ends in a comparison
with PostgreSQL; one that finds a difference ends the run with status 1 and without figures.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from . import capture, first_copy, freshness, machine, report
from .model import Options, Section, WrongData

PARTS: dict[str, Callable[[Options], Section]] = {
    "capture": capture.measure,
    "copy": first_copy.measure,
    "freshness": freshness.measure,
}


def main() -> None:
    arguments = _parse()
    # Told to end, it still ends what it has started and removes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A mirror that is configured by the environment must neither be touched nor change what is measured.
    for name in list(os.environ):
        if name.startswith("WAL2LAKE_") and name != "WAL2LAKE_CACHE":
            del os.environ[name]
    options = Options(arguments.scale, arguments.seconds, arguments.repeat)
    when, described = datetime.now(UTC), machine.describe()
    sections = []
    for name in [arguments.only] if arguments.only else PARTS:
        _say(f"{name}: measuring")
        began = time.monotonic()
        try:
            sections.append(PARTS[name](options))
        except WrongData as error:
            _say(f"{name}: WRONG DATA: {error}")
            sys.exit(1)
        _say(f"{name}: contents compared and equal, {time.monotonic() - began:.0f} s")
    text = report.markdown(described, options, sections, when)
    print(text)
    _say(f"written: {report.write_json(described, options, sections, when)}")
    if arguments.write_docs:
        report.write_page(text)
        _say(f"written: {report.PAGE}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Measure capture, copy and freshness.")
    parser.add_argument("--only", choices=list(PARTS), help="one part alone")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rows (default 1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long freshness is measured (default 60)")
    parser.add_argument("--repeat", type=int, default=3, help="how often each pair runs, in alternation (default 3)")
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/performance.md")
    arguments = parser.parse_args()
    if arguments.write_docs and arguments.only:
        parser.error("--write-docs shows all parts: leave out --only")
    if min(arguments.scale, arguments.seconds, arguments.repeat) <= 0:
        parser.error("--scale, --seconds and --repeat are above 0")
    return arguments


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
