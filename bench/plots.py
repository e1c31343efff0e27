"""The plots: lag over time, throughput and lag as load grows, capture by size of transaction, memory over a soak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .model import Series

SIZE_INCHES, DPI = (8.0, 4.5), 120
MARKED_POINTS = 40
"""a line with more points than this shows none of them"""


@dataclass(frozen=True)
class Plot:
    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    diagonal: str = ""
    """what y = x means, where it means something"""


PLOTS: Mapping[str, Plot] = {
    "lag": Plot("Lag over time", "seconds since the writer began", "seconds from commit to visible"),
    "throughput": Plot(
        "Throughput as load grows", "offered: changed rows/s", "visible in the lake: changed rows/s",
        log_x=True, log_y=True, diagonal="all that was offered",
    ),
    "lag-by-load": Plot(
        "Lag as load grows", "offered: changed rows/s", "seconds from commit to visible", log_x=True
    ),
    "capture": Plot("Capture by size of transaction", "rows in a transaction", "rows/s", log_x=True),
    "soak": Plot("Memory over a soak", "minutes", "MB in memory"),
}  # fmt: skip


def names(series: Sequence[Series]) -> list[str]:
    """The plots that there is something for, in the order of `PLOTS`."""
    wanted = {each.plot for each in series}
    if unknown := wanted - PLOTS.keys():
        raise ValueError(f"no such plot: {', '.join(sorted(unknown))}")
    return [name for name in PLOTS if name in wanted]


def draw(series: Sequence[Series], directory: Path, prefix: str) -> dict[str, Path]:
    """Write `<prefix>-<plot>.png` for each plot that there is something for."""
    files = {name: directory / f"{prefix}-{name}.png" for name in names(series)}
    for name, file in files.items():
        _draw(PLOTS[name], [each for each in series if each.plot == name], file)
    return files


def _draw(plot: Plot, lines: Sequence[Series], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for line in lines:
        axes.plot(line.x, line.y, marker="o" if len(line.x) <= MARKED_POINTS else "", linewidth=1.2, label=line.label)
    if plot.diagonal:
        ends = [min(min(line.x) for line in lines), max(max(line.x) for line in lines)]
        axes.plot(ends, ends, linestyle="--", color="grey", linewidth=1, label=plot.diagonal)
    if plot.log_x:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.savefig(file, metadata={"Software": None})
