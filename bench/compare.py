"""Two revisions beside each other, in one run on one machine: capture, apply, initial copy and freshness.

    python -m bench.compare BASE [--head HEAD] [--only PART]... [--rounds 3] [--scale 0.2] [--seconds 30]

Each revision is checked out beside the other and measured by its own `bench/`, in turns, so that both have the same
machine whatever it is doing. What differs by no more than the rounds of one revision differ among each other is noise.
Prints a table to stdout, progress to stderr; exits with 1 if a figure is worse than the noise explains. Each part ends
in a comparison of contents, as in `bench.run`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
MODULES = {"capture": "capture", "apply": "apply_backlog", "copy": "first_copy", "freshness": "freshness"}
LEAST_SCALE = {"freshness": 0.05}
"""parts that need loads of some size: a batch must not change a row twice"""
LEAST_NOISE = 0.05
"""a share; a machine is never quieter than that"""
_MEASURE = """
import importlib, json, signal, sys
from bench.model import Options
# Told to end, it still ends what it has started and removes its files.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
module, scale, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
section = importlib.import_module(f"bench.{module}").measure(Options(scale=scale, seconds=seconds, repeat=1))
print(json.dumps([[r.name, r.load, r.unit, r.ours] for r in section.ratios]))
"""

Figure = tuple[str, str, str]
"""name, load and unit"""


@dataclass(frozen=True)
class Difference:
    """One figure of both revisions, a value for each round."""

    figure: Figure
    base: tuple[float, ...]
    head: tuple[float, ...]

    @property
    def lower_is_better(self) -> bool:
        return not self.figure[2].endswith("/s")

    @property
    def change(self) -> float:
        """How much better the head is, as a share; below 0 it is worse."""
        base, head = median(self.base), median(self.head)
        return base / head - 1 if self.lower_is_better else head / base - 1

    @property
    def noise(self) -> float:
        """How far the rounds of one revision are from their median, as a share."""
        return max(LEAST_NOISE, *(max(abs(one / median(some) - 1) for one in some) for some in (self.base, self.head)))

    @property
    def worse(self) -> bool:
        return self.verdict == "**worse**"

    @property
    def verdict(self) -> str:
        if min(len(self.base), len(self.head)) < 2:
            return "not judged: one round tells nothing of noise"
        if abs(self.change) <= self.noise:
            return "the same within noise"
        return "better" if self.change > 0 else "**worse**"


def differences(base: Sequence[Mapping[Figure, float]], head: Sequence[Mapping[Figure, float]]) -> list[Difference]:
    """What both revisions measured, each in its rounds."""
    common = [figure for figure in base[0] if all(figure in one for one in (*base, *head))]
    return [
        Difference(figure, tuple(one[figure] for one in base), tuple(one[figure] for one in head)) for figure in common
    ]


def table(found: Sequence[Difference], base: str, head: str) -> str:
    lines: list[tuple[str, ...]] = [("figure", "load", base, head, "change", "noise", ""), ("---",) * 7]
    for each in found:
        name, load, unit = each.figure
        values = [f"{median(some):,.2f} {unit}" for some in (each.base, each.head)]
        lines.append((name, load, *values, f"{each.change:+.1%}", f"{each.noise:.1%}", each.verdict))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@contextmanager
def checked_out(revision: str, place: Path) -> Iterator[Path]:
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(place), revision], check=True)
    try:
        yield place
    finally:
        subprocess.run([*git, "remove", "--force", str(place)], check=True)


def measured(place: Path, part: str, scale: float, seconds: float) -> dict[Figure, float]:
    """The figures of one part, by the code of a revision alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAL2LAKE_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(place), str(place / "src")])
    if cache := os.environ.get("WAL2LAKE_CACHE"):
        environment["WAL2LAKE_CACHE"] = cache
    process = subprocess.Popen(
        [sys.executable, "-c", _MEASURE, MODULES[part], str(max(scale, LEAST_SCALE.get(part, 0.0))), str(seconds)],
        cwd=place, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate()
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        sys.exit(f"Error: {part} could not be measured in {place.name} (exit status {process.returncode})")
    answer = json.loads(output.splitlines()[-1])
    return {(name, load, unit): value for name, load, unit, value in answer}


def main() -> None:
    arguments = _parse()
    # Told to end, it ends what it has started and removes both checkouts.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds: dict[str, list[dict[Figure, float]]] = {"base": [], "head": []}
    revisions = {"base": arguments.base, "head": arguments.head}
    with (
        tempfile.TemporaryDirectory(prefix="wal2lake-compare-") as directory,
        checked_out(arguments.base, Path(directory) / "base") as base,
        checked_out(arguments.head, Path(directory) / "head") as head,
    ):
        places = {"base": base, "head": head}
        for number in range(arguments.rounds):
            for who in ("head", "base") if number % 2 else ("base", "head"):
                figures: dict[Figure, float] = {}
                for part in arguments.only or MODULES:
                    began = time.monotonic()
                    figures |= measured(places[who], part, arguments.scale, arguments.seconds)
                    took = time.monotonic() - began
                    print(f"round {number + 1}, {revisions[who]}: {part}, {took:.0f} s", file=sys.stderr, flush=True)
                rounds[who].append(figures)
    found = differences(rounds["base"], rounds["head"])
    print(table(found, arguments.base, arguments.head))
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}. Rounds: {arguments.rounds}, in turns.")
    sys.exit(any(each.worse for each in found))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Measure two revisions in turns.")
    parser.add_argument("base", help="a git revision")
    parser.add_argument("--head", default="HEAD", help="the revision beside it (default HEAD)")
    parser.add_argument("--only", choices=list(MODULES), action="append", help="one part alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="how often each revision is measured (default 3)")
    parser.add_argument("--scale", type=float, default=0.2, help="factor on the size of the loads (default 0.2)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of freshness in each round (default 30)")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.scale, arguments.seconds) <= 0:
        parser.error("--rounds, --scale and --seconds are above 0")
    return arguments


if __name__ == "__main__":
    main()
