"""Many seeds, on all cores: `python -m simulation.campaign --seeds 100000`.

Stops at the first seed that fails, with the command that repeats it; then it leaves out of that run what it can, faults
and steps of the workload, as long as it still fails.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache

from simulation.faults import Fault
from simulation.scenario import CAPTURES, WORKLOADS, Scenario, run

AT_ONCE = 10
"""seeds that a process is given"""
PROGRESS_SECONDS = 10.0
SHRINK_SECONDS = 300.0
MODES = sorted({mode for modes in CAPTURES.values() for mode in modes})


@dataclass(frozen=True)
class Failed:
    scenario: Scenario
    error: str
    """what it raised, with its traceback and notes"""
    kind: str

    def __str__(self) -> str:
        """The command that repeats it comes first: summaries show one line."""
        return f"{self.scenario.command}\n{self.error}"


def attempt(scenario: Scenario) -> Failed | None:
    """Run a scenario; how it failed."""
    try:
        run(scenario)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Failed(scenario, "".join(traceback.format_exception(error)), type(error).__name__)
    finally:
        # Tasks and their stacks refer to each other.
        gc.collect()
        _keep_modules()
    return None


@cache
def _keep_modules() -> None:
    """Looking through all that was imported takes as long as a run does."""
    gc.freeze()


def attempts(scenarios: Iterable[Scenario]) -> Failed | None:
    """Run scenarios one after the other, until one fails."""
    return next((failed for scenario in scenarios if (failed := attempt(scenario)) is not None), None)


def shrunk(failed: Failed, until: float, say: Callable[[str], object]) -> Failed:
    """The same failure with as few faults and steps as were found in time."""
    while time.monotonic() < until:
        for smaller in _smaller(failed.scenario):
            if time.monotonic() >= until:
                break
            again = attempt(smaller)
            if again is not None and again.kind == failed.kind:
                failed = again
                say(f"fails with {smaller.steps} steps, {len(smaller.faults)} faults")
                break
        else:
            break
    return failed


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    faults, steps = scenario.faults, scenario.steps
    if len(faults) > 1:
        yield replace(scenario, faults=())
    for left_out in range(len(faults)):
        yield replace(scenario, faults=faults[:left_out] + faults[left_out + 1 :])
    for fewer in dict.fromkeys((steps // 4, steps // 2, steps * 3 // 4, steps - 5, steps - 1)):
        if 0 <= fewer < steps:
            yield replace(scenario, steps=fewer)


def campaign(
    first: int, most: int, until: float, processes: int, say: Callable[[str], object], workload: str = "",
    capture: str = "",
) -> tuple[int, Failed | None]:  # fmt: skip
    """Run seeds from `first` on, until one fails, there were so many, or it is time; how many were run.

    Each has a workload and a capture mode of its own if none is given.
    """
    began = said = time.monotonic()
    done, given = 0, 0
    found: Failed | None = None
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running: dict[Future[Failed | None], int] = {}
        while True:
            while found is None and given < most and time.monotonic() < until and len(running) < 2 * processes:
                seeds = range(first + given, first + min(given + AT_ONCE, most))
                some = [Scenario.of(seed, workload=workload, capture=capture) for seed in seeds]
                running[pool.submit(attempts, some)] = len(some)
                given += len(some)
            if not running:
                break
            ended, _ = wait(running, timeout=PROGRESS_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                done += running.pop(future)
                found = found or future.result()
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                say(f"{done} seeds, {done / (said - began):.1f} a second")
    return done, found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="the first one; none: a fresh one")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps", type=int, help="of one seed: steps of the workload")
    parser.add_argument("--workload", default="", choices=["", *WORKLOADS], help="none: each seed has its own")
    parser.add_argument("--capture", default="", choices=["", *MODES], help="none: each seed has its own")
    parser.add_argument("--lake-seconds", type=float, help="of one seed: how long each commit in the lake takes")
    parser.add_argument("--faults", help="of one seed: codes of faults, or none")
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    first = given.seed if given.seed is not None else secrets.randbelow(1 << 31)
    began = time.monotonic()
    if given.seeds == 1:
        scenario = Scenario.of(first, workload=given.workload, capture=given.capture)
        if given.lake_seconds is not None:
            scenario = replace(scenario, lake_seconds=given.lake_seconds)
        if given.steps is not None:
            scenario = replace(scenario, steps=given.steps)
        if given.faults:
            codes = [] if given.faults == "none" else given.faults.split()
            scenario = replace(scenario, faults=tuple(map(Fault.parse, codes)))
        done, failed = 1, attempt(scenario)
    else:
        say(f"seeds from {first} on")
        until = began + given.seconds
        done, failed = campaign(first, given.seeds, until, given.processes, say, given.workload, given.capture)
    seconds = time.monotonic() - began
    if failed is None:
        say(f"{done} seeds passed in {seconds:.0f} s: {done / seconds:.1f} a second")
        return 0
    say(f"{failed.error}\nFAILED: {failed.scenario.command}")
    for fault in failed.scenario.faults:
        say(f"  {fault}")
    if given.steps is None and given.faults is None:
        failed = shrunk(failed, time.monotonic() + SHRINK_SECONDS, say)
        say(f"{failed.error}\nFAILS, too: {failed.scenario.command}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
