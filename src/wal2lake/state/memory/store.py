"""The state store in memory, for one process."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from ...clock import SYSTEM_CLOCK, Clock
from ...installation import Installation
from ...position import ZERO, LakeVersion, Lsn
from ...schema import TableId
from ..ownership import Owner, claim, require_owner
from ..ports import KEPT_ENTRIES
from ..records import AppendCounts, GroupRecord, GroupSpec, HistoryEntry, TableRecord, TableSpec
from .lease import MemoryLease, MemoryListener
from .server import TICK, Call, Changes, Contents, Hook, MemoryServer, Row

PATIENCE_SECONDS = 15.0
ENDING_SECONDS = 2.0

R = TypeVar("R", TableRecord, GroupRecord, HistoryEntry)


class MemoryState(MemoryServer):
    """A server with a state store in memory; at first there is no store."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, hook: Hook | None = None, changes: Changes | None = None) -> None:
        super().__init__(clock, hook, changes)
        self._processes = itertools.count(1)

    def connect(self, installation: Installation | None = None, process: str | None = None) -> MemoryStateStore:
        """The store for one process, whose name is that of the holder of its leases."""
        name = process or f"wal2lake on memory, process {next(self._processes)}"
        return MemoryStateStore(self, name, installation)


class MemoryStateStore:
    def __init__(self, server: MemoryServer, process: str, installation: Installation | None = None) -> None:
        self.process = process
        self._server = server
        self._installation = installation
        self._patience = PATIENCE_SECONDS

    # ---- the store itself

    def exists(self) -> bool:
        with self._server.call(self.process, "exists"):
            return self._server.store is not None

    @property
    def usable(self) -> bool:
        return self.exists()

    def create(self) -> None:
        with self._server.call(self.process, "create"):
            self._require_own()
            contents = self._server.store = self._server.store or Contents()
            if self._installation is not None:
                self._installation = Installation.made(self._installation.root)
                contents.owner = claim(contents.owner, Owner.of(self._installation))

    def require_own(self) -> None:
        with self._server.call(self.process, "require_own"):
            self._require_own()

    def _require_own(self) -> None:
        if self._installation is not None and self._server.store is not None:
            require_owner(self._server.store.owner, self._installation, self._server.store.groups)

    def drop(self) -> None:
        with self._server.call(self.process, "drop"):
            self._server.store = None

    def lease(self, group: str) -> MemoryLease:
        return MemoryLease(self._server, self.process, group)

    def listener(self) -> MemoryListener:
        return MemoryListener(self._server, self.process)

    def holder(self, group: str) -> str | None:
        with self._server.call(self.process, "holder"):
            session = self._server.leases.get(group)
            return None if session is None else str(session)

    def limit_waits(self) -> None:
        self._patience = ENDING_SECONDS

    def close(self) -> None:
        """There is no session to close."""

    @contextmanager
    def _use(self, method: str, *specs: int) -> Iterator[Contents]:
        with self._server.call(self.process, method):
            self._server.await_specs(specs, self._patience)
            yield self._server.contents

    @contextmanager
    def _telling(self, method: str, *specs: int) -> Iterator[Contents]:
        with self._use(method, *specs) as contents:
            yield contents
            self._server.notify()

    # ---- records of groups and tables

    def groups(self) -> list[GroupRecord]:
        with self._use("groups") as contents:
            return sorted(contents.groups.values(), key=lambda group: group.name)

    def save_group(self, group: GroupRecord) -> None:
        with self._use("save_group") as contents:
            known = contents.groups.get(group.name)
            logged = group.logged_lsn if group.logged_lsn is not None or known is None else known.logged_lsn
            saved = replace(group, logged_lsn=logged, updated_at=self._server.now())
            contents.groups[group.name] = _storable(saved)

    def tables(self, group: str | None = None) -> list[TableRecord]:
        with self._use("tables") as contents:
            records = [row.record for row in contents.tables.values() if group in (None, row.record.group)]
            return sorted(records, key=lambda record: (record.group, record.id.schema, record.id.name))

    def save_tables(self, tables: Iterable[TableRecord]) -> None:
        if records := list(tables):
            with self._use("save_tables") as contents:
                now = self._server.now()
                for record in records:
                    row = contents.tables.setdefault((record.group, record.oid), Row(record, now))
                    row.record = _storable(record)

    def claim_tables(self, tables: Iterable[TableRecord], copy: bool = True) -> set[int]:
        if not (records := list(tables)):
            return set()
        with self._use("claim_tables") as contents:
            claimed = {record.oid: record for record in records if not contents.has(record.oid)}
            wanted = self._server.now() if copy else None
            for record in claimed.values():
                contents.tables[record.group, record.oid] = Row(_storable(record), wanted)
            return set(claimed)

    def forget_tables(self, group: str, oids: Iterable[int]) -> None:
        gone = list(oids)
        with self._use("forget_tables") as contents:
            for oid in gone:
                contents.tables.pop((group, oid), None)

    def append_counts(self, group: str) -> dict[int, AppendCounts]:
        with self._use("append_counts") as contents:
            return {
                oid: replace(row.counted, seen_at=row.seen_at)
                for oid, row in _rows(contents, group)
                if row.counted is not None
            }

    def count_appends(self, group: str, oid: int, counts: Mapping[int, int]) -> None:
        with self._use("count_appends") as contents:
            if (row := contents.tables.get((group, oid))) is not None:
                row.counted, row.seen_at = AppendCounts(dict(counts), None), None

    def updates_seen(self, group: str, oid: int) -> None:
        with self._use("updates_seen") as contents:
            if (row := contents.tables.get((group, oid))) is not None:
                row.seen_at = row.seen_at or self._server.now()

    # ---- requests for copies

    def request_resync(
        self, tables: Iterable[TableRecord], together: str | None = None, quietly: bool = False
    ) -> datetime:  # fmt: skip
        records = list(tables)
        with (self._use if quietly else self._telling)("want_resync") as contents:
            rows = [row for table in records if (row := contents.tables.get((table.group, table.oid))) is not None]
            requested = max([self._server.now(), *(row.wanted + TICK for row in rows if row.wanted is not None)])
            for row in rows:
                row.wanted, row.together = requested, together
            return requested

    def requested_resyncs(self, group: str) -> dict[int, datetime]:
        with self._use("wanted_resyncs") as contents:
            return {oid: row.wanted for oid, row in _rows(contents, group) if row.wanted is not None}

    def rounds(self, group: str) -> dict[int, str]:
        with self._use("rounds") as contents:
            rows = _rows(contents, group)
            return {oid: row.together for oid, row in rows if row.together is not None and row.wanted is not None}

    def resync_done(self, group: str, oid: int, wanted: datetime | None) -> None:
        with self._use("resync_done") as contents:
            row = contents.tables.get((group, oid))
            if row is not None and row.wanted is not None and wanted is not None and row.wanted <= wanted:
                row.wanted = None
            _change(contents, oid, copy=True)

    # ---- desired state

    def table_specs(self) -> dict[int, TableSpec]:
        with self._use("table_specs") as contents:
            return dict(contents.table_specs)

    def set_table_spec(self, oid: int, id: TableId, changes: Mapping[str, Any]) -> None:
        with self._telling("set_table_spec", oid) as contents:
            spec = contents.table_specs.get(oid) or TableSpec(oid, id)
            contents.table_specs[oid] = replace(spec, id=id, **changes)

    def inherit_spec(self, oid: int, successor: int) -> None:
        with self._use("inherit_spec", oid) as contents:
            if successor not in contents.table_specs and (spec := contents.table_specs.pop(oid, None)) is not None:
                contents.table_specs[successor] = replace(_moved(spec), oid=successor)

    def request_resume(self, tables: Iterable[tuple[int, TableId]]) -> None:
        resumed = list(tables)
        with self._telling("want_resumed", *(oid for oid, _ in resumed)) as contents:
            now = self._server.now()
            for oid, id in resumed:
                spec = contents.table_specs.get(oid) or TableSpec(oid, id)
                contents.table_specs[oid] = replace(spec, paused=False, resumed_at=now)
            oids = {oid for oid, _ in resumed}
            for row in contents.tables.values():
                if row.record.oid in oids and row.record.retry_at is not None:
                    row.record = replace(row.record, retry_at=now)

    def drop_lake(self, oid: int, drop: Callable[[], object]) -> bool:
        call = Call(self.process, "drop_lake")
        self._server.hook.before(call)
        dropped = self._drop_lake(oid, drop)
        self._server.hook.after(call)
        return dropped

    def _drop_lake(self, oid: int, drop: Callable[[], object]) -> bool:
        server = self._server
        with server.changes:
            server.await_specs([oid], self._patience)
            spec = server.contents.table_specs.get(oid)
            if spec is None or not spec.drop_lake or spec.wanted is not False:
                return False
            server.dropping.add(oid)
        try:
            drop()
            with server.changes:
                _change(server.contents, oid, drop_lake=False)
        finally:
            with server.changes:
                server.dropping.discard(oid)
                server.changes.notify_all()
        return True

    def group_specs(self) -> dict[str, GroupSpec]:
        with self._use("group_specs") as contents:
            return dict(sorted(contents.group_specs.items()))

    def set_group_spec(self, spec: GroupSpec) -> None:
        with self._telling("set_group_spec") as contents:
            contents.group_specs[spec.name] = spec

    def forget_group(self, name: str) -> None:
        with self._telling("forget_group") as contents:
            specs = {oid: _without_group(spec, name) for oid, spec in contents.table_specs.items()}
            contents.table_specs = {oid: s for oid, s in specs.items() if not (s.group == name and s.wanted)}
            contents.tables = {key: row for key, row in contents.tables.items() if row.record.group != name}
            contents.group_specs.pop(name, None)
            contents.groups.pop(name, None)

    # ---- a table that moves from one group to another

    def note_handover(self, oid: int, position: Lsn) -> None:
        with self._telling("note_handover") as contents:
            spec = contents.table_specs.get(oid)
            if spec is not None and spec.moving_from is not None and spec.handover_lsn is None:
                _change(contents, oid, handover_lsn=position)

    def void_handovers(self, group: str, oids: Collection[int]) -> frozenset[int]:
        with self._use("void_handovers") as contents:
            moving = set()
            for oid in oids:
                spec = contents.table_specs.get(oid)
                if spec is not None and spec.group == group and spec.moving_from is not None:
                    _change(contents, oid, handover_lsn=None, handed_lsn=None if spec.handed_lsn is None else ZERO)
                    moving.add(oid)
            return frozenset(moving)

    def note_handed(self, oid: int, group: str, position: Lsn, version: LakeVersion) -> None:
        with self._telling("note_handed") as contents:
            spec = contents.table_specs.get(oid)
            if spec is not None and spec.moving_from == group:
                counts = spec.handover_lsn is not None and spec.handover_lsn <= position
                _change(contents, oid, handed_lsn=position if counts else ZERO, handed_version=version)
            contents.tables.pop((group, oid), None)

    def take_over(self, table: TableRecord) -> datetime | None:
        with self._use("take_over") as contents:
            if not _handed_to(contents, table.oid, table.group):
                return None
            if not contents.has(table.oid):
                contents.tables[table.group, table.oid] = Row(_storable(table), self._server.now())
            row = contents.tables.get((table.group, table.oid))
            return None if row is None else row.wanted or self._server.now()

    def end_take_over(self, oid: int, group: str, copied: bool) -> bool:
        with self._telling("end_take_over") as contents:
            if not _handed_to(contents, oid, group):
                return False
            if copied and not contents.table_specs[oid].handed_lsn:
                return False
            if copied and (row := contents.tables.get((group, oid))) is not None:
                row.wanted = None
            contents.table_specs[oid] = _moved(contents.table_specs[oid])
            return True

    # ---- history

    def add_history(self, entries: Sequence[HistoryEntry]) -> None:
        if entries:
            with self._use("add_history") as contents:
                found, kept = [*contents.history, *map(_storable, entries)], list[HistoryEntry]()
                counted = Counter[int]()
                for entry in reversed(found):
                    counted[entry.oid] += 1
                    if counted[entry.oid] <= KEPT_ENTRIES:
                        kept.append(entry)
                contents.history = kept[::-1]

    def history(self, id: TableId) -> list[HistoryEntry]:
        with self._use("history") as contents:
            oids = {entry.oid for entry in contents.history if entry.id == id}
            oids |= {row.record.oid for row in contents.tables.values() if row.record.id == id}
            return sorted((entry for entry in contents.history if entry.oid in oids), key=lambda entry: entry.at)


def _rows(contents: Contents, group: str) -> list[tuple[int, Row]]:
    return [(oid, row) for (name, oid), row in contents.tables.items() if name == group]


def _change(contents: Contents, oid: int, **changes: Any) -> None:
    if (spec := contents.table_specs.get(oid)) is not None:
        contents.table_specs[oid] = replace(spec, **changes)


def _handed_to(contents: Contents, oid: int, group: str) -> bool:
    spec = contents.table_specs.get(oid)
    return (
        spec is not None
        and spec.group == group
        and spec.wanted is True
        and spec.moving_from is not None
        and spec.handed_lsn is not None
    )


def _moved(spec: TableSpec) -> TableSpec:
    return replace(spec, moving_from=None, handover_lsn=None, handed_lsn=None)


def _without_group(spec: TableSpec, gone: str) -> TableSpec:
    """The spec of a table after a group is deleted."""
    if spec.moving_from is None or spec.handed_lsn is not None:
        return spec
    if spec.group == gone:
        return replace(spec, group=spec.moving_from, moving_from=None, handover_lsn=None)
    return replace(spec, handed_lsn=ZERO) if spec.moving_from == gone else spec


def _storable(record: R) -> R:
    """Without NUL, the only character that PostgreSQL's text can't hold."""
    texts = {name: value for name, value in vars(record).items() if isinstance(value, str) and "\0" in value}
    changes: dict[str, Any] = {name: value.replace("\0", "") for name, value in texts.items()}
    return replace(record, **changes)
