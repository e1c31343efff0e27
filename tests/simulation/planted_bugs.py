"""Bugs that a mirror could have, planted into the product by a test: the simulator must find each."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulation.faults import Port
from wal2lake.capture import replication
from wal2lake.changelog import ChangeLog, Manifest
from wal2lake.changelog import store as change_log
from wal2lake.changelog.backlog import Backlog
from wal2lake.decode import columns, pgoutput
from wal2lake.decode.messages import BEGIN, KIND_AT
from wal2lake.errors import ChangeLogDamaged, CommitUnknown, LakeError
from wal2lake.lake import Applied, Batch
from wal2lake.position import Lsn
from wal2lake.reconcile import registry
from wal2lake.reconcile.table_runtime import TableRuntime
from wal2lake.scheduling import batch_plan, capture_link, initial_copies, table_work
from wal2lake.scheduling.group_loop import GroupLoop
from wal2lake.source.model import ExportedSnapshot

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    name: str
    plant: Callable[[Patch], None]
    ports: tuple[Port, ...] = ()
    """where the faults are that are worth trying; none: anywhere"""
    capture: str = "wal"

    def __str__(self) -> str:
        return self.name


BUGS: list[Bug] = []


def bug(*ports: Port, capture: str = "wal") -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        BUGS.append(Bug(plant.__name__.replace("_", " "), plant, ports, capture))
        return plant

    return register


# ---- capture


@bug()
def acknowledges_before_it_is_durable(patch: Patch) -> None:
    real = replication.StreamSession._publish

    def publish(self: replication.StreamSession) -> None:
        real(self)
        self._stream.acknowledge(max(self._stream.received, self._stream.keepalive_lsn))

    patch.setattr(replication.StreamSession, "_publish", publish)


@bug()
def acknowledges_in_the_middle_of_a_transaction(patch: Patch) -> None:
    """What has come of it is taken for all of it."""
    real = replication.StreamSession._advance_idle

    def advance(self: replication.StreamSession, at_once: bool = False) -> None:
        real(self, at_once)
        begins = [message for some in self._intake._open for message in some if message[KIND_AT] == BEGIN]
        if begins:
            (commit_lsn,) = struct.unpack_from(">Q", begins[-1], KIND_AT + 1)
            self._stream.acknowledge(Lsn(commit_lsn + 1))

    patch.setattr(replication.StreamSession, "_advance_idle", advance)


@bug()
def skips_changes_by_the_lsn_of_their_row(patch: Patch) -> None:
    """A transaction that began before the position and committed after it is not skipped as a whole, but in part."""
    real = pgoutput.Decoder._part

    def part(self: pgoutput.Decoder, messages: Any) -> Any:
        found = real(self, messages)
        rows = found.raw.words(found.at - KIND_AT + 1).astype(np.int64)
        return replace(found, needed=found.needed & ((rows >= self._position) | (found.kinds == ord("C"))))

    patch.setattr(pgoutput.Decoder, "_part", part)


@bug()
def forgets_a_truncate_before_the_first_row_of_its_table(patch: Patch) -> None:
    units, truncations = pgoutput.Decoder._units, pgoutput.Decoder._truncations
    seen: dict[int, set[int]] = {}

    def note(self: pgoutput.Decoder, part: Any, described: Any) -> Iterator[Any]:
        for binding, numbers in units(self, part, described):
            seen.setdefault(id(self._resolve), set()).add(binding.target.schema.oid)
            yield binding, numbers

    def forget(self: pgoutput.Decoder, part: Any, described: Any) -> Iterator[Any]:
        for oid, truncation in truncations(self, part, described):
            if oid in seen.get(id(self._resolve), ()):
                yield oid, truncation

    patch.setattr(pgoutput.Decoder, "_units", note)
    patch.setattr(pgoutput.Decoder, "_truncations", forget)


@bug()
def writes_null_for_an_unchanged_toast_value(patch: Patch) -> None:
    patch.setattr(columns, "_unchanged", lambda schema, cells, count: pa.nulls(count, pa.list_(pa.int32())))


@bug()
def changes_a_key_without_deleting_the_old_row(patch: Patch) -> None:
    patch.setattr(columns, "_moved", lambda raw, tuples, output, binding, key: np.zeros(len(output.rows), np.bool_))


@bug()
def uses_the_number_of_a_manifest_again_after_a_crash(patch: Patch) -> None:
    """It takes the number of the newest manifest for that of the next one, the first time that it writes one."""
    written: set[int] = set()
    real = ChangeLog.publish

    def publish(self: ChangeLog, to_lsn: Lsn, transactions: int, commit_ts: datetime | None, tables: Any) -> Manifest:
        last = self.last()
        if id(self) in written or last is None or not tables:
            return real(self, to_lsn, transactions, commit_ts, tables)
        written.add(id(self))
        manifest = Manifest(last.number, last.from_lsn, to_lsn, transactions, commit_ts, tables)
        self.storage.put(change_log._manifest(last.number), manifest.to_json().encode())
        self._remember(manifest)
        return manifest

    patch.setattr(ChangeLog, "publish", publish)


@bug(Port.STREAM, Port.CONTROL)
def sweeps_the_segments_of_the_newest_manifest(patch: Patch) -> None:
    def sweep(self: ChangeLog) -> int:
        named = {
            segment.file
            for number in self._numbers()[:-1]
            for cut in self.read(number).tables.values()
            for segment in cut.segments
        }
        found = [name for table in self.storage.prefixes("segments") for name in self.storage.names(table)]
        for name in (orphans := [name for name in found if name not in named]):
            self.storage.delete(name)
        return len(orphans)

    patch.setattr(ChangeLog, "sweep", sweep)


# ---- the change log


@bug()
def deletes_manifests_as_soon_as_they_are_read(patch: Patch) -> None:
    def retire(self: GroupLoop) -> None:
        self._backlog.retire(self._backlog.seen)
        if self._backlog.has_retired():
            self._background.begin("deleting what is applied", self._backlog.delete)

    patch.setattr(GroupLoop, "_retire", retire)


@bug()
def deletes_the_manifests_of_paused_tables(patch: Patch) -> None:
    real = TableRuntime.done_with
    patch.setattr(TableRuntime, "done_with", lambda self, last: last if self.paused else real(self, last))


@bug()
def passes_over_a_manifest_of_a_backlog(patch: Patch) -> None:
    """When more than one waits, the first one is not read."""
    real = Backlog.after

    def after(self: Backlog, oid: int, number: int) -> Any:
        waiting = real(self, oid, number)
        if len(waiting) > 2:
            waiting.pass_over(waiting.numbers()[0])
        return waiting

    patch.setattr(Backlog, "after", after)


# ---- applying


@bug(Port.LAKE)
def drops_a_batch_that_failed(patch: Patch) -> None:
    real = table_work.TableWork._apply

    def apply(self: table_work.TableWork, name: str, applied: Applied, batch: Batch) -> Applied:
        try:
            return real(self, name, applied, batch)
        except LakeError:
            return replace(applied, lsn=batch.to_lsn, manifest=batch.to_manifest)

    patch.setattr(table_work.TableWork, "_apply", apply)


@bug(Port.LAKE)
def applies_a_batch_again_after_an_unknown_commit(patch: Patch) -> None:
    real = table_work.TableWork._apply

    def apply(self: table_work.TableWork, name: str, applied: Applied, batch: Batch) -> Applied:
        try:
            return real(self, name, applied, batch)
        except CommitUnknown:
            source = self._source.table_id(applied.schema.oid)
            found = self._lake.applied(applied.schema.id, source)
            assert found is not None
            # A position of its own, so that the lake does not find that it has it.
            return self._lake.apply(found, replace(batch, to_lsn=Lsn(batch.to_lsn + 1)), source, self._lease.epoch)

    patch.setattr(table_work.TableWork, "_apply", apply)


@bug()
def commits_the_position_after_the_rows(patch: Patch) -> None:
    def apply(self: table_work.TableWork, name: str, applied: Applied, batch: Batch) -> Applied:
        if not batch.segments and not batch.truncations:
            return replace(applied, lsn=batch.to_lsn, manifest=batch.to_manifest)
        source, epoch = self._source.table_id(applied.schema.oid), self._lease.epoch
        rows = replace(batch, to_lsn=Lsn(applied.lsn + 1), to_manifest=applied.manifest)
        done = self._lake.apply(applied, rows, source, epoch)
        return self._lake.restate(replace(done, lsn=batch.to_lsn, manifest=batch.to_manifest), source, epoch)

    patch.setattr(table_work.TableWork, "_apply", apply)


@bug(Port.LAKE, Port.STATE)
def takes_the_position_from_the_state_store(patch: Patch) -> None:
    """Where a table stands is what was last noted, which may be older than its lake table."""
    real = registry.TableRegistry._query_lake

    def ask(self: registry.TableRegistry, table: TableRuntime) -> Any:
        answer = real(self, table)
        noted = table.record.applied_lsn
        if isinstance(answer, Applied) and noted is not None and noted < answer.lsn:
            return replace(answer, lsn=noted, manifest=self._backlog.number_at(noted))
        return answer

    patch.setattr(registry.TableRegistry, "_query_lake", ask)


@bug()
def ends_a_batch_within_a_transaction(patch: Patch) -> None:
    """A batch takes a part of the segments of its last manifest."""
    real = batch_plan.plan_batch

    def plan(*args: Any, **kwargs: Any) -> batch_plan.BatchPlan:
        planned = real(*args, **kwargs)
        batch = planned.batch
        if batch is None or len(batch.segments) < 2:
            return planned
        return replace(planned, batch=replace(batch, segments=batch.segments[:-1]))

    patch.setattr("wal2lake.scheduling.table_work.plan_batch", plan)


# ---- copies and the desired state


@bug(Port.SOURCE, Port.LAKE)
def takes_a_snapshot_for_younger_than_it_is(patch: Patch) -> None:
    """Changes between the snapshot and the position that it is taken for are in neither."""
    real = initial_copies.Copies._copy

    def copy(self: initial_copies.Copies, table: TableRuntime, snapshot: ExportedSnapshot) -> Applied:
        self._executor.sleep(0.5)
        return real(self, table, replace(snapshot, lsn=self._source.mark()))

    patch.setattr(initial_copies.Copies, "_copy", copy)


@bug()
def takes_a_snapshot_for_older_than_it_is(patch: Patch) -> None:
    """Changes between the position that it is taken for and the snapshot are applied once more."""
    real = initial_copies.Copies._copy

    def copy(self: initial_copies.Copies, table: TableRuntime, snapshot: ExportedSnapshot) -> Applied:
        return real(self, table, replace(snapshot, lsn=Lsn(1)))

    patch.setattr(initial_copies.Copies, "_copy", copy)


@bug(Port.LAKE)
def forgets_a_resync_that_is_requested_while_changes_are_applied(patch: Patch) -> None:
    real = TableRuntime.request_copy

    def request_copy(self: TableRuntime, asked: datetime | None = None) -> None:
        if self.job is not None and asked is not None:
            self.copy_requested_at = asked
            return
        real(self, asked)

    patch.setattr(TableRuntime, "request_copy", request_copy)


@bug(Port.LAKE)
def ends_a_request_for_a_copy_before_the_copy_is_committed(patch: Patch) -> None:
    real = table_work.TableWork._begin_copies

    def begin(self: table_work.TableWork, tables: Iterable[TableRuntime], opened: Any = None) -> None:
        chosen = list(tables)
        for table in chosen:
            self._store.resync_done(self.group.name, table.schema.oid, table.copy_requested_at)
        real(self, chosen, opened)

    patch.setattr(table_work.TableWork, "_begin_copies", begin)


@bug(Port.LOG, Port.STREAM)
def goes_on_across_a_gap_of_the_stream(patch: Patch) -> None:
    """A new slot takes the place of a lost one, and nothing is re-copied."""

    def lose(self: capture_link.CaptureLink, error: Any) -> None:
        if not isinstance(error, ChangeLogDamaged):
            self._capture.stop()
            self._source.drop_slot()
            opened = self._source.create_slot(self._patience)
            self._log.record_acknowledged(opened.snapshot.lsn)
            opened.close()
            self._capture.start()

    patch.setattr(capture_link.CaptureLink, "lose", lose)
