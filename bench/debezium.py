"""Capture against Debezium Engine, on the same WAL.

The engine runs in a JVM of its own, which is warm: it has read the whole load before its clock runs, and what it gave
then is compared with the database. Its events end in a file, as lines of JSON, ours as segments of the change log;
both clocks run from the open stream until all of it is durable. It reads each load with its own defaults and once more
set up to be as quick as it can be; its time when events are only counted and dropped is shown as well.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from select import select
from statistics import median
from typing import IO, Any

import pyarrow as pa

from wal2lake.demo.server import HOST, SUPERUSER

from .capture import alternate, cores
from .contents import COMMIT, OP, SEQ, SourceTable, overlaid, require_same_rows
from .ground import DATABASE, Ground
from .loads import one_transaction, pgbench_mix, single_row_updates, wide_table
from .model import Options, Ratio, Section, WrongData, require_equal
from .recorded import LIMIT_SECONDS, PUBLICATION, Recorded, middle, recorded

PEER = "Debezium Engine"
TUNED = f"{PEER}, tuned"
TARGET = 5.0
SLOT = "bench_debezium"
LOOK_SECONDS = 0.01
SHOWN_LINES = 30
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")
PROPERTIES = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "bench",
    "plugin.name": "pgoutput",
    "publication.name": PUBLICATION,
    "publication.autocreate.mode": "disabled",
    "slot.name": SLOT,
    "snapshot.mode": "no_data",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "decimal.handling.mode": "string",
    "tombstones.on.delete": "false",
    "errors.max.retries": "0",
}
QUICK = {
    "max.batch.size": "20480",
    "max.queue.size": "81920",
    "poll.interval.ms": "10",
    "converter.schemas.enable": "false",
}
"""what makes it quicker than its defaults do; the last leaves out the description that each event has of itself"""


@dataclass(frozen=True)
class Read:
    """One run of the engine over a load."""

    start_seconds: float
    """from the order to the open stream"""
    seconds: float
    """from the open stream to the last event"""


def measure(options: Options) -> Section:
    loads = [
        one_transaction(options.rows(1_000_000, 300_000)),
        single_row_updates(options.rows(300_000, 200_000)),
        pgbench_mix(options.rows(100_000, 60_000)),
        wide_table(options.rows(100_000, 60_000)),
    ]
    outcomes = []
    for load in loads:
        with recorded(load) as record, _engine(record.ground) as engine:
            outcomes.append(_measure_load(record, engine, options.repeat))
    return Section(
        name="debezium",
        title="Capture against Debezium Engine on the same WAL",
        header=(
            "load", PEER, TUNED, "wal2lake", "wal2lake rows/s", f"{PEER} ÷ wal2lake", f"{TUNED} ÷ wal2lake", "starts",
        ),
        rows=tuple(
            (
                each["load"], f"{each['peer_seconds']:.2f} s", f"{each['tuned_seconds']:.2f} s",
                f"{each['seconds']:.2f} s", f"{each['rows_per_second']:,.0f}", f"{each['ratio']:.1f}",
                f"{each['tuned_ratio']:.1f}", f"{each['peer_start_seconds']:.2f} s, {each['start_seconds']:.2f} s",
            )
            for each in outcomes
        ),
        notes=(
            f"{PEER}'s JVM is warm. Its events are on disk as lines of JSON, ours as segments, acknowledged",
            f"tuned: {', '.join(f'{name} = {value}' for name, value in QUICK.items())}; else its own defaults",
            *[
                f"{each['load']}: tuned, and with its events counted and dropped, {PEER} takes "
                f"{each['let_go_seconds']:.2f} s, {each['let_go_seconds'] / each['seconds']:.1f} times ours"
                for each in outcomes
            ],
            *[cores(each) for each in outcomes],
        ),
        figures={"loads": outcomes},
        ratios=tuple(
            Ratio("capture", each["load"], "s", each["seconds"], name, each[f"{kind}_seconds"], each[ratio], TARGET)
            for name, kind, ratio in ((PEER, "peer", "ratio"), (TUNED, "tuned", "tuned_ratio"))
            for each in outcomes
        ),
    )  # fmt: skip


def _measure_load(record: Recorded, engine: _Engine, repeat: int) -> dict[str, Any]:
    kept = record.ground.directory / "events"
    engine.read(record, kept)
    _verify(record, kept)
    reads: list[Read] = []
    tuned: list[float] = []

    def read(settings: Mapping[str, str]) -> Read:
        done = engine.read(record, kept, settings)
        kept.unlink()
        return done

    def peer() -> float:
        tuned.append(read(QUICK).seconds)
        reads.append(read({}))
        return reads[-1].seconds

    ours, peers = alternate(record, repeat, peer)
    let_go = engine.read(record).seconds
    load, seconds = record.load, median(taken.seconds for taken in ours)
    return {
        "load": load.name, "rows": load.rows, "transactions": load.transactions,
        "seconds": seconds, "rows_per_second": load.rows / seconds,
        "peer_seconds": median(peers), "ratio": median(peers) / seconds,
        "tuned_seconds": median(tuned), "tuned_ratio": median(tuned) / seconds,
        "start_seconds": median(taken.start_seconds for taken in ours),
        "peer_start_seconds": median(each.start_seconds for each in reads),
        "own_cores": middle([taken.own_cores for taken in ours]),
        "server_cores": middle([taken.server_cores for taken in ours]), "let_go_seconds": let_go,
        "runs": [taken.seconds for taken in ours], "peer_runs": peers, "tuned_runs": tuned,
    }  # fmt: skip


class _Engine:
    """The engine's process: takes one order after the other."""

    def __init__(self, ground: Ground, orders: IO[str], answers: io.RawIOBase) -> None:
        self._orders, self._answers = orders, answers
        self._properties = {
            **PROPERTIES, "database.hostname": HOST, "database.port": str(ground.server.port),
            "database.user": SUPERUSER, "database.password": ground.server.password, "database.dbname": DATABASE,
        }  # fmt: skip

    def read(self, record: Recorded, keep: Path | None = None, settings: Mapping[str, str] = QUICK) -> Read:
        """Let it read the load from a slot of its own."""
        record.copy_slot(SLOT)
        order = {
            "properties": {**self._properties, **settings},
            "events": record.load.rows,
            "keep": str(keep) if keep else None,
        }
        ordered = time.monotonic()
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        opened = self._until_open(record.ground, ordered)
        answer = self._answer()
        while "events" not in answer:
            answer = self._answer()
        record.drop_slot(SLOT)
        require_equal(
            f"{record.load.name}: events of {PEER}, with the end marker", answer["events"], record.load.rows + 1
        )
        return Read(opened - ordered, answer["last"] - opened)

    def _until_open(self, ground: Ground, ordered: float) -> float:
        """When the stream was opened that the first event came from; it opens more than one before that."""
        opened, reader = ordered, None
        while not select([self._answers], [], [], LOOK_SECONDS)[0]:
            active = ground.value(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
            if active is not None and active != reader:
                opened, reader = time.monotonic(), active
            if time.monotonic() > ordered + LIMIT_SECONDS:
                raise RuntimeError(f"{PEER} gave nothing in {LIMIT_SECONDS:g} s")
        return opened

    def _answer(self) -> dict[str, Any]:
        if not select([self._answers], [], [], LIMIT_SECONDS)[0]:
            raise RuntimeError(f"{PEER} is not through after {LIMIT_SECONDS:g} s")
        if not (line := self._answers.readline()):
            raise RuntimeError(f"{PEER} ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def _engine(ground: Ground) -> Iterator[_Engine]:
    log = ground.directory / "debezium.log"
    ours, theirs = os.pipe()
    setpriv = shutil.which("setpriv")
    bound = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*bound, sys.executable, "-m", f"{__package__}.debezium_engine", str(theirs)],
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, pass_fds=[theirs],
            cwd=Path(__file__).parents[1], text=True,
        )  # fmt: skip
    os.close(theirs)
    assert process.stdin is not None
    try:
        # Without a buffer, in which an answer would wait unseen by `select`.
        with os.fdopen(ours, "rb", buffering=0) as answers, process.stdin as orders:
            yield _Engine(ground, orders, answers)
    except WrongData:
        raise
    except BaseException:
        sys.stderr.write("\n".join(log.read_text("utf-8", "replace").splitlines()[-SHOWN_LINES:]) + "\n")
        raise
    finally:
        process.kill()
        process.wait()


def _verify(record: Recorded, kept: Path) -> None:
    """The rows before the load and the engine's events make the rows after it."""
    tables = {name: SourceTable(record.ground.connection, name) for name in record.load.changes}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    with kept.open(encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            if (name := event["source"]["table"]) in rows:
                rows[name].append({**(event["after"] or event["before"]), OP: "I" if event["op"] == "c" else "U"})
    kept.unlink()
    for name, table in tables.items():
        changes = pa.table(
            {column: pa.array([_plain(row[column], kind) for row in rows[name]], kind) for column, kind in table.types}
            | {OP: [row[OP] for row in rows[name]], COMMIT: [0] * len(rows[name]), SEQ: range(len(rows[name]))}
        )
        require_same_rows(f"{name}: {PEER}", overlaid(table, record.before[name], changes), table.read())


def _plain(value: Any, kind: Any) -> Any:
    """Debezium's value in the type that is compared: a moment is text there, a day and a truth value are a number."""
    if kind == pa.int64() and isinstance(value, str):
        return (datetime.fromisoformat(value) - EPOCH) // timedelta(microseconds=1)
    return int(value) if kind == pa.int64() and value is not None else value
