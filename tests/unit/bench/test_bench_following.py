"""The benchmark's evaluation of times: parts of a commit's delay, growth in a soak, time covered by jobs."""

from __future__ import annotations

import pytest
from bench.following import _delays
from bench.many_tables import Load
from bench.model import Options
from bench.observer import Published, Version, holding
from bench.soak import growth
from bench.spark import _covered
from bench.writer import Commit

from wal2lake.position import Lsn


def version(at: float, lsn: int) -> Version:
    return Version(at, Lsn(lsn), 0)


def test_a_commit_is_visible_with_the_first_version_that_includes_its_end() -> None:
    commit = Commit("orders", 7, 100.0, Lsn(10), 10)
    versions = {"orders": [version(90.0, 5), version(103.0, 20), version(106.0, 30)]}
    (delay,) = _delays([commit], {7: Lsn(20)}, versions, [])
    assert delay.seconds == 3.0
    assert delay.stages is None


def test_the_stages_of_a_commit_add_up_to_its_delay() -> None:
    commit = Commit("orders", 7, 100.0, Lsn(10), 10)
    versions = {"orders": [version(90.0, 5), version(102.5, 15), version(104.0, 30)]}
    (delay,) = _delays([commit], {7: Lsn(20)}, versions, [Published(Lsn(25), 100.8, 101.0)])
    assert delay.stages == pytest.approx((0.8, 0.2, 1.5, 1.5))
    assert sum(delay.stages or ()) == pytest.approx(delay.seconds)


def test_a_free_worker_is_not_waited_for() -> None:
    commit = Commit("orders", 7, 100.0, Lsn(10), 10)
    versions = {"orders": [version(90.0, 5), version(102.0, 30)]}
    (delay,) = _delays([commit], {7: Lsn(20)}, versions, [Published(Lsn(25), 100.8, 101.0)])
    assert delay.stages == pytest.approx((0.8, 0.2, 0.0, 1.0))


def test_a_commit_is_in_the_first_manifest_that_ends_at_or_after_it() -> None:
    manifests = [Published(Lsn(10), 1.0, 1.0), Published(Lsn(20), 2.0, 2.0)]
    assert holding(manifests, Lsn(10)) == manifests[0]
    assert holding(manifests, Lsn(11)) == manifests[1]
    assert holding(manifests, Lsn(21)) is None


def test_growth_compares_the_last_tenth_with_the_first() -> None:
    flat = growth(list(range(100)), [200.0] * 100)
    assert (flat.percent, flat.per_hour) == pytest.approx((0.0, 0.0), abs=1e-6)
    rising = growth([float(second) for second in range(100)], [100.0 + second for second in range(100)])
    assert rising.percent == pytest.approx((194.5 / 104.5 - 1) * 100)
    assert rising.per_hour == pytest.approx(3600)


def test_time_in_which_two_jobs_ran_counts_once() -> None:
    assert _covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]) == 4.0


def test_a_full_run_has_200_tables_with_20_changing_and_starts_1000() -> None:
    load = Load.of(Options(scale=1, seconds=60, repeat=3, full=True))
    assert (len(load.busy), len(load.idle), len(load.more)) == (20, 180, 800)
