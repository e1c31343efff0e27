"""The scripted PostgreSQL against a real one: the same random histories give the same streams and catalogs."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from change_sources import RealServer, ScriptedServer, Server, Session, decoded, everything
from servers import Database, nobody_answers, server_major
from simulation.statements import SETUP, Step, random_history
from simulation.world import config_of, default_groups
from trigger_lanes import Lane, ScriptedLane
from waiting import wait_until
from wal2lake.position import Lsn
from wal2lake.visibility import PgSnapshot

SEEDS = range(12)
STEPS = 250


def portrait(server: Server) -> dict[str, object]:
    """What the catalog says of each table, without numbers that differ between servers."""
    catalog, oids = server.catalog(), server.oids()
    names = {oid: name for name, oid in oids.items()}
    try:
        schemas = catalog.describe(list(oids.values()))
        tables = catalog.tables(list(oids.values()))
        return {
            names[oid]: (
                schema.id, schema.columns, schema.key, schema.identity, schema.partitioned, bool(schema.key_index),
                schema.catalog_key, schema.settings_from, tables[oid].attributes,
                # Whether a partition is known to have been made as one is judged by how a real catalog looks.
                sorted((names[heap.oid], *(names[level.oid] for level in heap.levels)) for heap in schema.heaps),
                [catalog.partition_bounds(heap.oid)[0] for heap in schema.heaps] if schema.partitioned else None,
            )
            for oid, schema in schemas.items()
        }  # fmt: skip
    finally:
        catalog.close()


def contents(database: Database, names: Mapping[str, int]) -> dict[str, Counter[tuple[str | None, ...]]]:
    found = {}
    for name in names:
        columns = database.rows(
            "SELECT quote_ident(attname) || '::text' FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum",
            [name],
        )
        found[name] = Counter(database.rows(f"SELECT {', '.join(column for (column,) in columns)} FROM {name}"))
    return found


@pytest.mark.skipif(server_major() < 15, reason="the model sends no transactions without changes")
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_history_gives_the_same_stream_rows_and_catalog(database: Database, seed: int) -> None:
    real = RealServer(database)
    real.run(*SETUP)
    sessions: dict[int, Session] = {}
    open: set[int] = set()
    scripted, starts = ScriptedServer(), dict[str, Lsn]()
    for number, (step, model) in enumerate(random_history(seed, STEPS)):
        if number == 0:
            scripted = ScriptedServer(model)
            starts = {"real": real.create_slot(), "scripted": scripted.create_slot()}
            continue
        session = sessions.setdefault(step.session, real.session()) if step.session not in sessions else sessions[
            step.session
        ]  # fmt: skip
        if step.statement is not None:
            open.add(step.session)
            session.execute(step.statement)
            continue
        open.discard(step.session)
        session.commit() if step.commits else session.rollback()
        if not open:
            assert portrait(scripted) == portrait(real)
    assert decoded(everything(scripted, starts["scripted"])) == decoded(everything(real, starts["real"]))
    assert {name: scripted.model.contents(name) for name in scripted.oids()} == contents(database, real.oids())


# ---- what snapshots see, and what triggers capture


class Waiting:
    """Sessions of a real server, whose commits may wait for a synchronous standby that never answers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sessions: dict[int, psycopg.Connection[Any]] = {}
        self._commits: dict[int, threading.Thread] = {}

    def take(self, step: Step) -> None:
        session = self._sessions.setdefault(step.session, self._database.connect(autocommit=False))
        if step.answers:
            # A commit that is cancelled while it waits is a commit all the same.
            self._database.rows("SELECT pg_cancel_backend(%s)", [session.info.backend_pid])
            self._commits.pop(step.session).join()
        elif step.statement is not None:
            session.execute(step.statement.sql.encode())
        elif step.waits:
            session.execute("SET LOCAL synchronous_commit = on")
            self._commits[step.session] = thread = threading.Thread(target=session.commit, daemon=True)
            thread.start()
            waits = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
            wait_until(lambda: bool(self._database.rows(waits, [session.info.backend_pid])), 20, "a waiting commit")
        else:
            session.commit() if step.commits else session.rollback()

    def xid(self, number: int) -> int | None:
        """The number of the open transaction of a session, if it has one."""
        row = self._sessions[number].execute("SELECT pg_current_xact_id_if_assigned()::text").fetchone()
        assert row is not None
        return int(row[0]) if row[0] is not None else None


@pytest.fixture
def waiting(database: Database) -> Iterator[Waiting]:
    database.execute(f'ALTER DATABASE "{database.name}" SET synchronous_commit = local')
    with nobody_answers(database):
        yield Waiting(database)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_history_has_the_same_transactions_seen(database: Database, waiting: Waiting, seed: int) -> None:
    RealServer(database).run(*SETUP)
    numbers: dict[int, int] = {}
    """of the transactions of the model, on the real server"""
    compared = 0
    for number, (step, model) in enumerate(random_history(seed, STEPS, sessions=3, ddl=0.0, standby=True)):
        if number == 0:
            continue
        waiting.take(step)
        if step.statement is not None:
            mine = [one for one in model.holding if one.xid and one.xid not in numbers]
            xid = waiting.xid(step.session)
            assert (xid is not None and xid not in numbers.values()) == bool(mine)
            numbers |= {one.xid: xid for one in mine if xid is not None}
        real, scripted = PgSnapshot.parse(database.value("SELECT pg_current_snapshot()::text")), model.snapshot()
        assert {xid: scripted.sees(xid) for xid in numbers} == {xid: real.sees(numbers[xid]) for xid in numbers}
        assert all(real.begun_before(numbers[xid]) for xid in numbers if scripted.begun_before(xid))
        compared += len(scripted.running)
    assert compared > 20


@pytest.mark.parametrize("seed", range(6))
def test_the_same_history_fills_the_same_buffers(
    database: Database, waiting: Waiting, tmp_path: Path, seed: int
) -> None:
    RealServer(database).run(*SETUP)
    chance, drains = random.Random(seed), 0
    with contextlib.ExitStack() as stack:
        for number, (step, model) in enumerate(random_history(seed, STEPS, sessions=3, ddl=0.0, standby=True)):
            if number == 0:
                real, scripted = Lane(database, tmp_path), ScriptedLane(model, config_of(*default_groups("trigger")))
                stack.callback(real.close)
                real.begin()
                scripted.begin()
                continue
            waiting.take(step)
            if chance.random() < 0.2:
                drained = [drained_all(lane) for lane in (real, scripted)]
                assert bool(drained[0]) == bool(drained[1])
                drains += drained[1]
                assert by_name(real, RealServer(database).oids()) == by_name(scripted, ScriptedServer(model).oids())
        assert drains > 10


def drained_all(lane: Lane) -> int:
    with lane.open() as stream:
        count = 0
        # What became visible without a sign in the WAL since the last drain is given at the second look.
        while lane.drain(stream) or lane.drain(stream):
            count += 1
    return count


def by_name(lane: Lane, oids: Mapping[str, int]) -> dict[str, object]:
    """What drains have left of each table, and how many marks say that it has to be re-copied."""
    mirrored = {name: oid for name, oid in oids.items() if oid in lane.rows}
    return {name: (+lane.rows[oid], lane.marks.count(oid)) for name, oid in mirrored.items()}
