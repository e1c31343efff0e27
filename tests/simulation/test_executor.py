"""What the simulated executor promises besides the contract of all: seeds, time, reports of what is stuck, crashes."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

import simulation.executor
from simulation.executor import SimulatedExecutor, Stuck
from simulation.tasks import TaskKilled
from wal2lake.executor import Executor

MOMENT = 0.02


def _tick(executor: Executor) -> None:
    for _ in range(10_000):
        executor.sleep(1)


def _fail() -> None:
    raise FileNotFoundError("as it should")


def race(executor: SimulatedExecutor) -> list[str]:
    told: list[str] = []

    def work(name: str) -> None:
        for _ in range(4):
            executor.yield_()
            told.append(name)

    for name in "abc":
        executor.start(name, lambda name=name: work(name))  # type: ignore[misc]  # its own name
    return told


def interleaving(seed: int) -> tuple[str, list[tuple[float, str]]]:
    executor = SimulatedExecutor(seed)
    return "".join(executor.run(lambda: race(executor))), executor.trace


def test_the_same_seed_gives_the_same_interleaving() -> None:
    for seed in range(20):
        assert interleaving(seed) == interleaving(seed)


def test_different_seeds_give_different_interleavings() -> None:
    assert len({interleaving(seed)[0] for seed in range(50)}) > 40


def test_a_day_passes_in_no_time() -> None:
    executor = SimulatedExecutor(1)

    def main() -> None:
        began = executor.clock.monotonic()
        late = executor.start("late", lambda: executor.sleep(86_000))
        executor.sleep(3_600)
        assert executor.clock.monotonic() - began == 3_600
        late.join()
        assert executor.clock.monotonic() - began == 86_000

    executor.run(main)


def test_a_deadlock_names_all_tasks_with_what_they_wait_for_and_where() -> None:
    executor = SimulatedExecutor(1)

    def waits_for_ever() -> None:
        executor.event().wait()

    def main() -> None:
        executor.start("forgotten", waits_for_ever)
        executor.queue().get()

    with pytest.raises(Stuck) as raised:
        executor.run(main)
    text = str(raised.value)
    assert "main (main) waits for a queue" in text and "forgotten (main) waits for an event" in text
    assert "in waits_for_ever" in text


def test_tasks_that_run_forever_without_time_passing_are_found() -> None:
    executor = SimulatedExecutor(1)

    def main() -> None:
        while True:
            executor.yield_()

    with pytest.raises(Stuck, match="without end"):
        executor.run(main)


def test_a_run_that_takes_too_much_simulated_time_is_ended() -> None:
    executor = SimulatedExecutor(1)

    def main() -> None:
        executor.start("ticks", partial(_tick, executor), daemon=True)
        executor.event().wait()

    with pytest.raises(Stuck):
        executor.run(main, limit=100)
    assert executor.clock.elapsed <= 100


def test_a_task_that_waits_for_what_is_not_simulated_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation.executor, "REAL_SECONDS", MOMENT)
    executor, real = SimulatedExecutor(1), threading.Lock()

    def main() -> None:
        other = executor.start("other", real.acquire)
        with real:
            other.join()

    with pytest.raises(Stuck, match="other keeps the baton"):
        executor.run(main)


def test_the_error_of_a_task_ends_the_run() -> None:
    executor = SimulatedExecutor(1)

    def main() -> None:
        executor.start("fails", _fail)
        executor.sleep(10)

    with pytest.raises(FileNotFoundError):
        executor.run(main)


def test_a_killed_process_ends_at_its_waits_and_has_no_effect_any_more() -> None:
    for seed in range(20):
        executor = SimulatedExecutor(seed)
        executor.run(lambda executor=executor: crash(executor))  # type: ignore[misc]  # its own executor


def crash(executor: SimulatedExecutor) -> None:
    event, told, lock, log = executor.event(), executor.queue(), executor.lock(), []

    def child() -> None:
        pool = executor.pool("works", 1)
        future = pool.submit(worker)
        try:
            future.result()
        finally:
            log.append("ends")
            told.put("never comes")
            event.set()
            executor.start("never begins", lambda: log.append("begun"))
            pool.submit(log.append, "begun")
            with pytest.raises(TaskKilled):
                executor.yield_()

    def worker() -> None:
        with lock:
            executor.sleep(100)
            log.append("slept")

    task: Any = executor.spawn("capture", "child", child)
    executor.sleep(1)
    executor.kill("capture")
    task.join()
    with lock:
        pass
    assert executor.clock.elapsed < 100
    assert log == ["ends"] and told.qsize() == 0 and not event.is_set()


def test_a_task_can_crash_its_own_process() -> None:
    executor = SimulatedExecutor(1)
    log: list[str] = []

    def child() -> None:
        executor.kill("capture")
        log.append("goes on")

    def main() -> None:
        executor.spawn("capture", "child", child).join()

    executor.run(main)
    assert log == []
