"""Capture under simulated time: its worker as a task, its pipeline in every order of its steps."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import changelogs
import stream_encoder as encode
from simulation.capture import SimulatedCapture
from simulation.executor import SimulatedExecutor
from wal2lake.capture import pipeline as pipeline_module
from wal2lake.capture.pipeline import Pipeline
from wal2lake.capture.postgres import capture_source
from wal2lake.capture.report import CaptureHandle, CaptureReport, CaptureState, Owner
from wal2lake.capture.worker import CaptureWorker
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import Config
from wal2lake.decode import Messages, Relation, Target
from wal2lake.errors import CaptureError, ConnectionFailed
from wal2lake.position import Lsn
from wal2lake.schema import Membership

SEEDS = range(25)
TABLES = [encode.table({"id": "int", "v": "string"}, oid=oid, name=f"t{oid}") for oid in (1, 2, 3)]


class Resolver:
    def __init__(self) -> None:
        self.names = {schema.oid: schema.id.name for schema in TABLES}
        self.attached: dict[int, tuple[Membership, ...]] = {}
        self._targets = {schema.oid: Target(schema, 1) for schema in TABLES}

    def __call__(self, relation: Relation, commit_lsn: Lsn) -> Target | None:
        return self._targets[relation.oid]

    def resolve_at_once(self, relation: Relation) -> Target | None:
        return self._targets[relation.oid]

    def doubts(self, upto: Lsn) -> dict[int, frozenset[int]]:
        return {}


def transactions(decide: random.Random) -> Iterator[tuple[int, list[bytes], list[tuple[int, str]]]]:
    """Each with its commit LSN, its messages, and the rows that it inserts, as (table, id)."""
    for number in range(decide.randrange(4, 12)):
        lsn = 200 + 100 * number
        rows = [(decide.choice(TABLES), f"{lsn + i}") for i in range(decide.randrange(4))]
        inserts = [encode.insert(schema.oid, [id, "v" * decide.randrange(50)]) for schema, id in rows]
        relations = [encode.relation(schema) for schema in TABLES] if not number else []
        messages = [encode.begin(lsn), *relations, *inserts, encode.commit(lsn)]
        yield lsn, messages, [(schema.oid, id) for schema, id in rows]


class Reader:
    """The task that reads the stream: it hands messages over, and takes what is published."""

    def __init__(self, executor: SimulatedExecutor, log: ChangeLog, seed: int) -> None:
        self._executor, self._log, self._decide = executor, log, random.Random(seed)
        self.expected: dict[int, list[tuple[int, str]]] = {}
        self.ends: list[Lsn] = []

    def read(self) -> None:
        pipeline = Pipeline(self._log, Resolver(), self._log.position(), executor=self._executor)
        for lsn, messages, rows in transactions(self._decide):
            self.expected[lsn] = rows
            pipeline.take([Messages.of(messages)])
            if self._decide.random() < 0.4:
                pipeline.publish()
            elif self._decide.random() < 0.4:
                pipeline.report_if_empty()
            if self._decide.random() < 0.5:
                self._executor.wait_readable([pipeline.wake], self._decide.choice([0.0, 0.01, 1.0]))
                self._take(pipeline)
        pipeline.publish()
        while pipeline.publishing:
            assert self._executor.wait_readable([pipeline.wake], 60), "what was asked for comes out"
            self._take(pipeline)
        assert pipeline.idle
        pipeline.close()

    def _take(self, pipeline: Pipeline) -> None:
        self.ends += [published.cut.to_lsn for published in pipeline.published()]


def logged(log: ChangeLog) -> list[tuple[int, list[tuple[int, int, str]]]]:
    """For each manifest the position that it goes to, and its rows as (commit, table, id)."""
    found = []
    for manifest in log.after(0):
        rows: list[tuple[int, int, str]] = []
        for oid, cut in manifest.tables.items():
            for segment in cut.segments:
                read: list[dict[str, Any]] = pq.read_table(changelogs.file_of(log, segment)).to_pylist()
                rows += [(row["_commit_lsn"], oid, str(row["id"])) for row in read]
        found.append((int(manifest.to_lsn), rows))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_order_of_its_steps_the_pipeline_publishes_every_transaction_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_module, "MOST_BYTES", 200)
    executor, log = SimulatedExecutor(seed), changelogs.begun(storage_for(tmp_path))
    reader = Reader(executor, log, seed)
    executor.run(reader.read)
    manifests = logged(ChangeLog(storage_for(tmp_path), "g"))
    rows = [row for _, of_manifest in manifests for row in of_manifest]
    assert sorted(rows) == sorted((lsn, *row) for lsn, some in reader.expected.items() for row in some)
    assert reader.ends == sorted(reader.ends), "in the order in which they were asked for"
    before = 0
    for to_lsn, of_manifest in manifests:
        assert all(before <= commit < to_lsn for commit, _, _ in of_manifest), "only whole transactions"
        before = to_lsn


def test_the_same_seed_runs_the_pipeline_in_the_same_order(tmp_path: Path) -> None:
    def trace(name: str, seed: int) -> list[tuple[float, str]]:
        executor = SimulatedExecutor(seed)
        executor.run(Reader(executor, changelogs.begun(storage_for(tmp_path / name)), 7).read)
        return executor.trace

    assert trace("a", 1) == trace("b", 1)
    assert trace("a2", 1) != trace("c", 2)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # a crash closes nothing
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_crash_leaves_behind_is_a_log_that_goes_on(seed: int, tmp_path: Path) -> None:
    executor, log = SimulatedExecutor(seed), changelogs.begun(storage_for(tmp_path))

    def main() -> None:
        child = executor.spawn("capture", "reads", Reader(executor, log, seed).read)
        for _ in range(random.Random(seed).randrange(40)):
            executor.yield_()
        executor.kill("capture")
        child.join()

    executor.run(main)
    # The files of the process that crashed, while this test ignores that they are open.
    gc.collect()
    again = ChangeLog(storage_for(tmp_path), "g")
    again.sweep()
    executor = SimulatedExecutor(seed)
    reader = Reader(executor, again, seed)
    executor.run(reader.read)
    rows = [row for _, of_manifest in logged(ChangeLog(storage_for(tmp_path), "g")) for row in of_manifest]
    assert sorted(rows) == sorted((lsn, *row) for lsn, some in reader.expected.items() for row in some)


def test_a_worker_that_can_not_connect_tries_again_and_again_in_simulated_time_until_it_is_stopped(
    tmp_path: Path,
) -> None:
    config = Config(source={"dsn": "postgresql://u:p@127.0.0.1:1/none"}, lake={"path": str(tmp_path)})
    group = config.groups[0]
    log = ChangeLog(storage_for(config.changelog_path), group.name)
    log.create(changelogs.ORIGIN, changelogs.ORIGIN.slot)
    log.begin(Lsn(100))
    executor, states = SimulatedExecutor(3), []

    def worker(owner: Owner) -> CaptureWorker:
        return CaptureWorker(
            config, group, owner, capture_source(config, group), storage_for(config.changelog_path), executor
        )

    capture: CaptureHandle = SimulatedCapture(
        executor, group.name, worker, lambda: states.append(capture.report().state)
    )

    def main() -> CaptureReport:
        capture.start()
        executor.sleep(600)
        report = capture.report()
        assert report.state is CaptureState.RECONNECTING and isinstance(report.error, ConnectionFailed)
        with pytest.raises(RuntimeError, match="is running"):
            capture.start()
        began = executor.clock.monotonic()
        last = capture.stop()
        assert executor.clock.monotonic() - began < 1
        return last

    assert executor.run(main).state is CaptureState.STOPPED
    assert states[-1] is CaptureState.STOPPED and set(states[:-1]) == {CaptureState.RECONNECTING}


class Crashing:
    """Publishes nothing, reports once, and is killed."""

    def __init__(self, executor: SimulatedExecutor, capture: list[SimulatedCapture], owner: Owner) -> None:
        self._executor, self._capture, self._owner = executor, capture, owner

    def run(self) -> None:
        self._owner.send_report(CaptureReport(CaptureState.STREAMING, logged_lsn=Lsn(5), connected_once=True))
        self._executor.sleep(1)
        self._executor.kill(self._capture[0].process)


def test_a_capture_that_crashes_is_started_again_and_given_up_when_it_crashes_too_often() -> None:
    executor = SimulatedExecutor(1)
    made: list[SimulatedCapture] = []
    made.append(SimulatedCapture(executor, "g", lambda owner: Crashing(executor, made, owner)))

    def main() -> CaptureReport:
        made[0].start()
        while not made[0].report().fatal:
            executor.sleep(1)
        return made[0].report()

    report = executor.run(main)
    assert report.connected_once and report.logged_lsn == Lsn(5) and isinstance(report.error, CaptureError)
    assert made[0].process == "capture-g-6"
