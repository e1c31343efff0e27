"""What campaigns have found in polling, triggers and the change from one to another."""

from __future__ import annotations

import pytest

from simulation.postgres import ScriptedPostgres
from simulation.postgres_snapshots import ScriptedSnapshots
from simulation.postgres_triggers import ScriptedRequests
from simulation.world import config_of, default_groups
from wal2lake.decode.messages import parse_commit
from wal2lake.position import Lsn
from wal2lake.source.triggers import TriggerStream, copies

# A process that has crashed closes nothing.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Drained:
    """A table that triggers capture, with the stream of its lane."""

    def __init__(self) -> None:
        config = config_of(*default_groups("trigger"))
        self.server = ScriptedPostgres()
        self.server.run(lambda tx: tx.ddl.create_table("t", {"id": "int4"}, ["id"]))
        source = self.server.source(config, config.groups[0])
        source.publish(source.discover())
        self.lane = source.slot_name
        with source.create_slot() as taken:
            self.token, self.start = taken.snapshot.token, taken.snapshot.lsn

    def open(self) -> TriggerStream:
        return TriggerStream(self.server.buffers(self.lane), self.lane, self.start, self.token)

    def insert(self, id: int) -> None:
        self.server.run(lambda tx: tx.insert("t", id=str(id)))


def drained(stream: TriggerStream) -> Lsn:
    """Read one drain; where it ends."""
    stream.ask()
    last = b""
    while last[25:26] != b"C":
        for message in stream.read(1.0):
            last = message
    assert not stream.read(0.0)
    return Lsn(parse_commit(last).end_lsn)


def test_a_copy_whose_rows_were_drained_before_waits_until_they_are_durable() -> None:
    """If capture failed in between, these rows would be drained again, at a position after that of the copy."""
    world = Drained()
    with world.open() as stream:
        world.insert(1)
        end = drained(stream)
        requests = ScriptedRequests(world.server, world.lane)
        with copies.take(ScriptedSnapshots(world.server)) as taken:
            assert requests.ask("1", taken.snapshot)
            stream.ask()
            assert not stream.read(0.0)
            answer = requests.answer()
            assert answer is not None and answer.answered is None
            stream.acknowledge(end)
            answer = requests.answer()
            assert answer is not None and answer.answered == "1" and answer.granted
