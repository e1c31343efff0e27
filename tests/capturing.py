"""A group whose changes are captured, without a lake: tests read the change log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from servers import Database
from wal2lake.capture.process import CaptureProcess
from wal2lake.capture.report import CaptureReport, CaptureState
from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.config import Config, GroupConfig
from wal2lake.position import Lsn
from wal2lake.schema import TableId, TableSchema
from wal2lake.source import connect, mark, server_facts
from wal2lake.source.publishing import publication, slot
from wal2lake.source.tables import catalog

GROUP = "g"
SLOT = "wal2lake_g_test"
PATIENCE = 30.0


class CapturedGroup:
    def __init__(self, database: Database, directory: Path, **group: Any) -> None:
        self.database = database
        settings = {"name": GROUP, "flush_interval": 0.05, "flush_bytes": 1024 * 1024, **group}
        self.config = Config(source={"dsn": database.dsn}, lake={"path": str(directory)}, groups=[settings])
        self.group: GroupConfig = self.config.groups[0]
        self.log = ChangeLog(storage_for(self.config.changelog_path), GROUP)
        self.capture = CaptureProcess(self.config, self.group)

    def publish(self, tables: Sequence[str]) -> dict[str, TableSchema]:
        with connect(self.config.source) as conn:
            oids = {name: self.oid(name) for name in tables}
            publication.ensure(
                conn, publication.publication_name(GROUP), [(oids[name], TableId.parse(name)) for name in tables]
            )
            schemas = catalog.describe(conn, list(oids.values()))
        return {name: schemas[oid] for name, oid in oids.items()}

    def begin(self, *tables: str) -> slot.HeldSnapshot:
        """Publication, slot and log, as a first run makes them. The snapshot is the caller's to close."""
        self.publish(tables)
        with connect(self.config.source) as conn:
            self.log.create(server_facts(conn), SLOT)
        held = slot.create(self.config.source, SLOT, GROUP)
        self.log.begin(held.snapshot.lsn)
        return held

    def oid(self, name: str) -> int:
        return int(self.database.value(f"SELECT '{name}'::regclass::oid::int8"))

    def start(self) -> None:
        self.capture = CaptureProcess(self.config, self.group)
        self.capture.start()

    def stop(self) -> CaptureReport:
        return self.capture.stop()

    def catch_up(self) -> CaptureReport:
        """Wait until all that is committed now is logged."""
        with connect(self.config.source) as conn:
            until = mark(conn)
        report = self.logged(until, lambda r: r.fatal)
        assert report.logged_lsn >= until, f"not at {until}: {report}"
        return report

    def logged(self, until: Lsn, other: Callable[[CaptureReport], bool]) -> CaptureReport:
        """Wait until all below a position is logged, or something else holds; asks again as long as it does not."""
        give_up = time.monotonic() + PATIENCE
        while True:
            self.capture.request_flush(until)
            report = self.capture.wait_for(lambda r: r.logged_lsn >= until or other(r), 1.0)
            if report.logged_lsn >= until or other(report) or time.monotonic() > give_up:
                return report

    def fails(self) -> CaptureReport:
        report = self.capture.wait_for(lambda r: r.fatal, PATIENCE)
        assert report.state is CaptureState.FAILED, report
        return report

    def confirmed(self) -> Lsn:
        text = self.database.value(
            f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        )
        return Lsn.parse(text)

    def changes(self, table: str) -> list[dict[str, Any]]:
        """All changes of a table in the order of the log, `_lsn`/`_seq`/`_op` beside its columns."""
        oid = self.oid(table)
        fresh = ChangeLog(storage_for(self.config.changelog_path), GROUP)
        found: list[dict[str, Any]] = []
        for manifest in fresh.after(0):
            if (cut := manifest.tables.get(oid)) is None:
                continue
            for segment in cut.segments:
                rows = pq.read_table(fresh.uri(segment)).to_pylist()
                assert len(rows) == segment.rows
                assert all(manifest.from_lsn <= row["_commit_lsn"] < manifest.to_lsn for row in rows)
                found += rows
        keys = [(row["_commit_lsn"], row["_seq"]) for row in found]
        assert len(keys) == len(set(keys)), "a change is in the log twice"
        return found

    def replayed(self, table: str, before: Sequence[int] = ()) -> set[int]:
        """The values of column `id` after all changes, begun with those of the snapshot."""
        present = set(before)
        for row in sorted(self.changes(table), key=lambda row: (row["_commit_lsn"], row["_seq"])):
            if row["_op"] == "D":
                present.remove(row["id"])
            elif row["_op"] == "I":
                assert row["id"] not in present
                present.add(row["id"])
            else:
                assert row["id"] in present
        return present
