"""What capture by triggers costs the source, beside row-level triggers and none, and how fast buffers are drained.

Times of statements are those in which the server process did not wait for a processor, so that they say the same on a
busy machine; with them go the times on the clock, which do not.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from wal2lake.capture.process import CaptureProcess
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import Config
from wal2lake.position import Lsn
from wal2lake.source import connect, server_facts
from wal2lake.source.publishing import drop_slot

from .contents import SourceTable, segments_of
from .ground import Ground, prepared
from .loads import ORDER_VALUES, ORDERS, one_transaction, run_pgbench
from .machine import waited_seconds
from .model import Options, Ratio, Section, WrongData, percentile, require_equal
from .recorded import GROUP, LIMIT_SECONDS, PUBLICATION, SLOT, Recorded, middle, recorded, scratch
from .trigger_lane import Drained, TriggerLane

NONE, OURS, ROWS = "without", "ours", "row-level"
TABLES = {NONE: "plain", OURS: "captured", ROWS: "by_row"}
STATEMENTS = {
    "INSERT": f"INSERT INTO {{}} SELECT {ORDER_VALUES} FROM generate_series(1::bigint, {{rows}}) AS n",
    "UPDATE": "UPDATE {} SET quantity = quantity + 1, status = 'paid'",
}
CLIENTS = 8
MOST_US_PER_ROW = 2.5
MOST_OF_ROW_LEVEL = 1 / 3
LEAST_THROUGHPUT, MOST_P95 = 0.85, 1.15
LEAST_BESIDE_A_SLOT = 0.97
LEAST_DRAINED = 200_000
_SECONDS = 10.0
_BY_ROW = """
    CREATE TABLE by_row_changes (
        id bigint GENERATED ALWAYS AS IDENTITY, xid xid8 NOT NULL DEFAULT pg_current_xact_id(), op "char", {columns});
    CREATE FUNCTION note_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP <> 'INSERT' THEN INSERT INTO by_row_changes (op, {names}) VALUES ('D', {old}); END IF;
        IF TG_OP <> 'DELETE' THEN INSERT INTO by_row_changes (op, {names}) VALUES ('I', {new}); END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_row AFTER INSERT OR UPDATE OR DELETE ON by_row FOR EACH ROW EXECUTE FUNCTION note_row()
"""
_COLUMNS = {
    "id": "bigint", "customer": "int", "status": "text", "quantity": "int", "amount": "numeric(12,2)",
    "placed_at": "timestamptz",
}  # fmt: skip


@dataclass(frozen=True)
class Clients:
    """A run of pgbench."""

    tps: float
    p95_ms: float


Bulk = dict[str, dict[str, dict[str, Any]]]
Runs = dict[str, list[Clients]]


def measure(options: Options) -> Section:
    rows = options.rows(100_000)
    with prepared() as ground:
        lane = _tables(ground)
        bulk = _bulk(ground, lane, rows, options.repeat)
        single = _single(ground, lane, options)
    with prepared() as ground:
        beside = _beside_a_slot(ground, options)
    with recorded(one_transaction(options.rows(300_000))) as record:
        drains = _drains(record, options.repeat)
    return _section(rows, bulk, single, beside, drains)


# ---- what statements cost


def _tables(ground: Ground) -> TriggerLane:
    """The same table without triggers, with ours, and with an equivalent one for each row."""
    for name in TABLES.values():
        ground.connection.execute(ORDERS.replace("orders", name).encode())
    text = _BY_ROW.format(
        columns=", ".join(f"c{number} {kind}" for number, kind in enumerate(_COLUMNS.values())),
        names=", ".join(f"c{number}" for number in range(len(_COLUMNS))),
        old=", ".join(f"OLD.{name}" for name in _COLUMNS), new=", ".join(f"NEW.{name}" for name in _COLUMNS),
    )  # fmt: skip
    ground.connection.execute(text.encode())
    return TriggerLane(ground, ground.directory / "lane", TABLES[OURS])


def _bulk(ground: Ground, lane: TriggerLane, rows: int, repeat: int) -> Bulk:
    """Seconds of each statement by kind of trigger: those in which it did not wait for a processor, and all."""
    own: dict[tuple[str, str], list[float]] = {}
    clock: dict[tuple[str, str], list[float]] = {}
    pid = ground.connection.info.backend_pid
    for turn in range(repeat):
        for kind in list(TABLES)[:: 1 if turn % 2 else -1]:
            _empty(ground, lane)
            ground.settle()
            for name, statement in STATEMENTS.items():
                began, waited = time.monotonic(), waited_seconds(pid) or 0.0
                ground.connection.execute(statement.format(TABLES[kind], rows=rows).encode())
                took = time.monotonic() - began
                own.setdefault((name, kind), []).append(took - ((waited_seconds(pid) or 0.0) - waited))
                clock.setdefault((name, kind), []).append(took)
            if kind == OURS:
                _require_sum(ground, lane.buffer(TABLES[OURS]), TABLES[OURS])
    return {
        name: {
            kind: {"seconds": median(own[name, kind]), "clock": median(clock[name, kind]), "runs": own[name, kind]}
            for kind in TABLES
        }
        for name in STATEMENTS
    }


def _empty(ground: Ground, lane: TriggerLane) -> None:
    for name in (*TABLES.values(), lane.buffer(TABLES[OURS]), "by_row_changes"):
        ground.connection.execute(f"TRUNCATE {name}".encode())


def _require_sum(ground: Ground, buffer: str, table: str) -> None:
    """What was inserted less what was deleted is what the table has."""
    buffered = ", ".join(f"c{number}" for number in range(len(_COLUMNS)))
    left = f"SELECT {buffered} FROM {buffer} WHERE op = 'I' EXCEPT ALL SELECT {buffered} FROM {buffer} WHERE op = 'D'"
    for what, more, less in (("too few", f"TABLE {table}", left), ("too many", left, f"TABLE {table}")):
        found = ground.value(f"SELECT count(*) FROM (({more}) EXCEPT ALL ({less})) AS differing")
        require_equal(f"rows of {table} that are {what} in its buffer", found, 0)


def _single(ground: Ground, lane: TriggerLane, options: Options) -> Runs:
    """Single-row updates of some clients, with triggers and without."""
    _empty(ground, lane)
    for kind in (NONE, OURS):
        ground.connection.execute(STATEMENTS["INSERT"].format(TABLES[kind], rows=100_000).encode())
    found: Runs = {NONE: [], OURS: []}
    for turn in range(options.repeat):
        for kind in (NONE, OURS)[:: 1 if turn % 2 else -1]:
            ground.connection.execute(f"TRUNCATE {lane.buffer(TABLES[OURS])}".encode())
            ground.settle()
            script = f"\\set id random(1, 100000)\nUPDATE {TABLES[kind]} SET quantity = quantity + 1 WHERE id = :id;\n"
            found[kind].append(_pgbench(ground, options.seconds_of(_SECONDS), script))
    return found


def _pgbench(ground: Ground, seconds: float, script: str | None = None) -> Clients:
    with tempfile.TemporaryDirectory(dir=ground.directory) as place:
        directory = Path(place)
        what = ["--builtin", "tpcb-like"]
        if script is not None:
            (directory / "script").write_text(script)
            what = ["--file", str(directory / "script")]
        run_pgbench(
            ground, "--client", str(CLIENTS), "--jobs", "2", "--time", str(max(1, round(seconds))), "--no-vacuum",
            "--protocol", "prepared", "--log", "--log-prefix", str(directory / "log"), *what, waiting=True,
        )  # fmt: skip
        lines = [line.split() for log in directory.glob("log.*") for line in log.read_text().splitlines()]
    ends = [int(line[4]) + int(line[5]) / 1e6 for line in lines]
    took = [int(line[2]) / 1000 for line in lines]
    return Clients(len(lines) / max(1e-3, max(ends) - min(ends)), percentile(took, 95))


# ---- a slot beside the load


def _beside_a_slot(ground: Ground, options: Options) -> Runs:
    """pgbench's own mix with the replication stream captured, and with no slot."""
    run_pgbench(ground, "--initialize", "--scale", "10", "--quiet")
    connection = ground.connection
    connection.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
    tables = ("pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(tables)}".encode())
    found: Runs = {NONE: [], OURS: []}
    for turn in range(options.repeat):
        for kind in (NONE, OURS)[:: 1 if turn % 2 else -1]:
            ground.settle()
            with _captured(ground, turn) if kind == OURS else nullcontext():
                found[kind].append(_pgbench(ground, options.seconds_of(_SECONDS)))
    return found


@contextmanager
def _captured(ground: Ground, turn: int) -> Iterator[None]:
    """Our capture process on the group's slot; at the end it has come as far as the source."""
    config = Config(
        source={"dsn": ground.dsn}, lake={"path": str(ground.directory / f"wal-{turn}")}, groups=[{"name": GROUP}]
    )
    log = ChangeLog(storage_for(config.changelog_path), GROUP)
    with connect(config.source) as own:
        log.create(server_facts(own), SLOT)
    begin = ground.value(f"SELECT lsn::text FROM pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    log.begin(Lsn.parse(begin))
    capture = CaptureProcess(config, config.groups[0])
    capture.start()
    try:
        capture.wait_for(lambda report: report.connected_once or report.fatal, LIMIT_SECONDS)
        yield
        end = Lsn.parse(ground.value("SELECT pg_current_wal_insert_lsn()::text"))
        report = capture.wait_for(lambda report: report.logged_lsn >= end or report.fatal, LIMIT_SECONDS)
        if report.logged_lsn < end:
            raise WrongData(f"capture is not at {end} after {LIMIT_SECONDS:g} s: {report}")
    finally:
        capture.stop()
        with connect(config.source) as own:
            drop_slot(own, SLOT)


# ---- drains


def _drains(record: Recorded, repeat: int) -> dict[str, Any]:
    """Rows that triggers have buffered, and the same rows in the WAL, into a change log, in turns."""
    ground, rows, table = record.ground, record.load.rows, "drained"
    ground.connection.execute(ORDERS.replace("orders", table).encode())
    lane = TriggerLane(ground, ground.directory / "lane", table)
    ours: list[Drained] = []
    peers: list[float] = []
    for turn in range(repeat):
        for kind in (NONE, OURS)[:: 1 if turn % 2 else -1]:
            if kind == NONE:
                with scratch(record, f"stream-{turn}") as directory:
                    peers.append(record.capture(directory).seconds)
                    record.verify(directory, contents=False)
                continue
            ground.connection.execute(f"TRUNCATE {table}".encode())
            ground.connection.execute(STATEMENTS["INSERT"].format(table, rows=rows).encode())
            ground.settle()
            ours.append(lane.drain())
    found = SourceTable(ground.connection, table)
    changes = sum(segment.rows for segment in segments_of(lane.log, found.oid))
    require_equal("changes of the drained table in the manifests", changes, rows * repeat)
    seconds = median(one.seconds for one in ours)
    own = middle([one.own_cores for one in ours])
    return {
        "rows": rows, "seconds": seconds, "peer": median(peers), "own_cores": own,
        "runs": [one.seconds for one in ours], "peer_runs": peers,
    }  # fmt: skip


# ---- what is shown

Shown = tuple[list[Ratio], list[tuple[str, ...]]]


def _section(rows: int, bulk: Bulk, single: Runs, beside: Runs, drains: dict[str, Any]) -> Section:
    busy = "pgbench's mix, {} clients, the slot captured on the same cores"
    parts = [
        *(_of_statement(f"{name} of {rows:,} rows", rows, each) for name, each in bulk.items()),
        _of_clients("triggers", f"single-row updates, {CLIENTS} clients", single, LEAST_THROUGHPUT, MOST_P95),
        _of_clients("a slot", busy.format(CLIENTS), beside, LEAST_BESIDE_A_SLOT, None),
        _of_drains(drains),
    ]
    notes = [
        "bulk statements: the time in which the server process did not wait for a processor, medians",
        "single-row updates: the buffer is not drained meanwhile",
    ]
    if drains["own_cores"] is not None:
        notes.append(f"drain: the capture process kept {drains['own_cores']:.2f} cores busy")
    return Section(
        name="triggers",
        title="Capture by triggers: what it costs the source, and drains",
        header=("load", "without", "wal2lake", "row-level trigger", "ratio"),
        rows=tuple(row for _, some in parts for row in some),
        notes=tuple(notes),
        figures={
            "bulk": bulk, "drains": drains,
            "single": {kind: [asdict(run) for run in some] for kind, some in single.items()},
            "beside_a_slot": {kind: [asdict(run) for run in some] for kind, some in beside.items()},
        },
        ratios=tuple(ratio for some, _ in parts for ratio in some),
    )  # fmt: skip


def _of_statement(load: str, rows: int, each: dict[str, dict[str, Any]]) -> Shown:
    def more(what: str, kind: str) -> float:
        return float(each[kind][what] - each[NONE][what]) / rows * 1e6

    ours, by_row = more("seconds", OURS), more("seconds", ROWS)
    figure = "triggers, cost of a row"
    ratios = [
        Ratio(figure, load, "µs", ours, "", None, ours, MOST_US_PER_ROW, at_most=True),
        Ratio(figure, load, "µs", ours, "row-level trigger", by_row, ours / by_row, MOST_OF_ROW_LEVEL, at_most=True),
    ]
    row = (
        load, f"{each[NONE]['seconds'] / rows * 1e6:.2f} µs a row",
        f"+{ours:.2f} µs ({more('clock', OURS):+.2f} on the clock)",
        f"+{by_row:.2f} µs ({more('clock', ROWS):+.2f} on the clock)", f"{ours / by_row:.2f}",
    )  # fmt: skip
    return ratios, [row]


def _of_clients(figure: str, load: str, runs: Runs, least: float, most: float | None) -> Shown:
    tps = {kind: median(run.tps for run in some) for kind, some in runs.items()}
    p95 = {kind: median(run.p95_ms for run in some) for kind, some in runs.items()}
    faster, longer, peer = tps[OURS] / tps[NONE], p95[OURS] / p95[NONE], f"without {figure}"
    ratios = [Ratio(f"{figure}, throughput", load, "transactions/s", tps[OURS], peer, tps[NONE], faster, least)]
    if most is not None:
        ratios.append(Ratio(f"{figure}, p95", load, "ms", p95[OURS], peer, p95[NONE], longer, most, at_most=True))
    told = {kind: f"{tps[kind]:,.0f}/s, p95 {p95[kind]:.2f} ms" for kind in runs}
    return ratios, [(load, told[NONE], told[OURS], "", f"{faster:.2f}, p95 {longer:.2f}")]


def _of_drains(drains: dict[str, Any]) -> Shown:
    rate, peer = (drains["rows"] / drains[key] for key in ("seconds", "peer"))
    load = f"{drains['rows']:,} buffered rows"
    ratios = [
        Ratio("drain", load, "rows/s", rate, "", None, rate, LEAST_DRAINED),
        Ratio("drain", load, "rows/s", rate, "replication stream", peer, rate / peer),
    ]
    return ratios, [(f"drain of {load}", "", f"{rate:,.0f} rows/s", "", f"{rate / peer:.2f} of the stream")]
