"""The capture worker on sources that are not servers: their changes are in the change log."""

from __future__ import annotations

import random
import select
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from replayed_source import Replay, ReplayedStream, Row
from simulation.postgres import ScriptedPostgres
from simulation.postgres_stream import ScriptedStream
from simulation.statements import PUBLICATION
from wal2lake.capture.report import CaptureReport, CaptureState
from wal2lake.capture.worker import CaptureWorker
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import Config
from wal2lake.decode import Messages
from wal2lake.position import Lsn
from wal2lake.source.ports import CaptureSource, StreamRequest

GROUP, SLOT = "g", "wal2lake_g"
PER_READ = 5
"""messages at once: most reads end in the middle of a transaction"""
CONNECTIONS = 3


class BrokenStream(ScriptedStream):
    """A stream whose server hangs up after some reads."""

    left = 30

    def read(self, timeout: float, wake: Sequence[int] = ()) -> Messages:
        self.left -= 1
        if self.left == 0:
            self._server.disconnect()
        return super().read(timeout, wake)


class Until:
    """The owner of a worker, who stops it when all below a position is logged, or it has given up."""

    wake: Sequence[int] = ()

    def __init__(self, end: Lsn) -> None:
        self._end = end
        self._asked = False
        self.report = CaptureReport()

    @property
    def stopping(self) -> bool:
        return self.report.logged_lsn >= self._end

    def poll_commands(self) -> Lsn | None:
        asked, self._asked = self._asked, True
        return None if asked else self._end

    def send_report(self, report: CaptureReport) -> bool:
        self.report = report
        return True


class Group:
    """A group whose change log begins at a slot of the scripted server."""

    def __init__(self, directory: Path, model: ScriptedPostgres) -> None:
        self.config = Config(
            source={"dsn": "postgresql://unused"}, lake={"path": str(directory)},
            groups=[{"name": GROUP, "publication": PUBLICATION, "tables": ["public.*"], "flush_interval": 0.05}],
        )  # fmt: skip
        self.log = ChangeLog(storage_for(self.config.changelog_path), GROUP)
        self.log.create(model.facts(), SLOT)
        with model.create_slot(SLOT) as held:
            self.start = held.snapshot.lsn
        self.log.begin(self.start)

    def capture(self, source: CaptureSource, end: Lsn) -> list[dict[str, Any]]:
        """Follow a source up to a position; all rows of the log in the order of their commits."""
        owner = Until(end)
        CaptureWorker(self.config, self.config.groups[0], owner, source, storage_for(self.config.changelog_path)).run()
        assert owner.report.state is CaptureState.STOPPED, owner.report
        log = ChangeLog(storage_for(self.config.changelog_path), GROUP)
        cuts = [cut for manifest in log.after(0) for cut in manifest.tables.values()]
        files = [log.uri(segment) for cut in cuts for segment in cut.segments]
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        return sorted(rows, key=lambda row: (row["_commit_lsn"], row["_seq"]))


@pytest.fixture
def model() -> ScriptedPostgres:
    """A server with one table, which is published."""
    made = ScriptedPostgres()
    made.run(lambda tx: tx.ddl.create_table("t", {"id": "int4", "v": "text"}, ["id"]))
    made.run(lambda tx: tx.ddl.create_publication(PUBLICATION, "t"))
    return made


def test_a_list_of_transactions_becomes_a_change_log(tmp_path: Path, model: ScriptedPostgres) -> None:
    group = Group(tmp_path, model)
    (table,) = model.state.tables.values()
    rows: list[list[Row]] = [[("I", ("1", "a")), ("I", ("2", None))], [("U", ("1", "b"))], [("D", ("2", None))]]
    replay = Replay(table.relation(), group.start, rows)

    def opened(request: StreamRequest) -> ReplayedStream:
        return ReplayedStream(replay, request.start)

    found = group.capture(CaptureSource(opened, model.catalog, model.control), replay.end)
    assert [(row["_op"], row["id"], row["v"]) for row in found] == [
        ("I", 1, "a"),
        ("I", 2, None),
        ("U", 1, "b"),
        ("D", 2, None),
    ]


def test_the_change_log_leads_to_the_rows_of_the_scripted_server_though_it_hangs_up_on_the_worker(
    tmp_path: Path, model: ScriptedPostgres
) -> None:
    group = Group(tmp_path, model)
    chance = random.Random(7)
    for number in range(60):
        transaction = model.begin()
        for id in range(3 * number, 3 * number + 3):
            transaction.insert("t", id=str(id), v="a")
        present = sorted(int(id or 0) for id, _ in transaction.state.contents(transaction.table("t")))
        one, other, third = chance.sample(present, 3)
        transaction.update("t", {"id": str(one)}, id=str(1000 + one))
        transaction.update("t", {"id": str(other)}, v=f"b{number}")
        transaction.delete("t", {"id": str(third)})
        transaction.commit()
    end = model.mark()
    opened: list[ScriptedStream] = []

    def open(request: StreamRequest) -> ScriptedStream:
        opened.append(
            (BrokenStream if len(opened) + 1 < CONNECTIONS else ScriptedStream)(model, request, PER_READ, wait)
        )
        return opened[-1]

    def wait(timeout: float, wake: Sequence[int]) -> None:
        select.select(wake, [], [], min(timeout, 0.05))

    rows: dict[int, str | None] = {}
    for row in group.capture(CaptureSource(open, model.catalog, model.control), end):
        if row["_op"] != "I":
            del rows[row["_old_id"] if row["_key_changed"] else row["id"]]
        if row["_op"] != "D":
            assert row["id"] not in rows
            rows[row["id"]] = row["v"]
    assert Counter((str(id), v) for id, v in rows.items()) == model.contents("t", end)
    assert len(opened) == CONNECTIONS
