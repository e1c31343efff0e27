"""The tables of a group that streams, in its publications: by themselves, or by the buffers that triggers fill."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from ..config import PGOUTPUT, Config, GroupConfig, settings_of
from ..errors import SourceBusy, SourceRefused, UpdatesRefused, Wal2LakeError
from ..position import ZERO, Lsn
from ..schema import TableSchema
from .asking import LOCKED_SECONDS, Asking
from .publishing import Identified, contents, publication, replica_identity, slot
from .sessions.connect import Connection, alive
from .sessions.locking import blocked, retried
from .sessions.server import wal_written
from .tables import catalog
from .tables.facts import changes_counted, refused_heaps
from .triggers import Condition, drop_lane, drop_place, has_buffers, published, trigger_conditions, trigger_obstacles
from .triggers.definition import Buffer

log = logging.getLogger(__name__)


class PublishedTables(Asking):
    def __init__(self, config: Config, group: GroupConfig) -> None:
        super().__init__(config, group)
        self._altering = threading.Lock()
        """held while triggers come and go"""
        self._retired_at: dict[str, Lsn] = {}
        """for each buffer that nothing fills any more, a position after its last row"""
        self._deleted: dict[str, int] = {}
        self._extra: Connection | None = None

    # ---- what is published

    def publish(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        """Make the group's publications contain exactly these tables. A named publication is not changed.

        Tables that PostgreSQL refuses, or whose updates it would refuse, are left out and returned with the reason,
        unless triggers capture them. Raises SourceBusy, with the holder of the lock, if tables are locked for long.
        """
        if self._group.publication is not None:
            return {}
        with self._altering:
            refused = self._change_ways(schemas)
            kept = self.by_triggers()
            rest = [schema for schema in schemas if schema.oid not in kept and schema.oid not in refused]
            return refused | self._publish(rest)

    def _publish(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        refused: dict[int, Wal2LakeError] = {}
        appending = [schema for schema in schemas if self.append_only(schema)]
        rest = [schema for schema in schemas if schema not in appending]
        main, append = self._publications
        mark = self.installation.mark

        def attempt(connection: Connection) -> None:
            refused.clear()
            # In one transaction, so that a table that moves between the publications is always in one of them.
            with connection.transaction():
                publication.ensure(connection, main, *publication.parts(rest), mark=mark, refused=refused)
                if appending or contents.exists(connection, append):
                    tables, narrowed = publication.parts(appending)
                    tables += contents.buffers_in(connection, append)
                    publication.ensure(connection, append, tables, narrowed, append=True, mark=mark, refused=refused)

        try:
            retried(lambda: self._ask(attempt), LOCKED_SECONDS, self._interrupted.is_set)
        except SourceBusy as error:
            raise self._ask(partial(blocked, tables=[schema.oid for schema in schemas], error=error)) from error
        return refused

    @property
    def must_renew(self) -> bool:
        """Whether tables that are added to a publication while a slot exists must be added twice."""
        return self._group.publication is None and publication.must_renew(self._ask(lambda c: c.info.server_version))

    def renew(self, schemas: Sequence[TableSchema]) -> None:
        """Publish published tables again. Raises SourceBusy if they are locked."""
        main, append = self._publications
        # Who writes a table is waited for before its buffer is published.
        kept = self.by_triggers()
        schemas = [schema for schema in schemas if schema.oid not in kept]
        for name, some in (
            (main, [schema for schema in schemas if not self.append_only(schema)]),
            (append, [schema for schema in schemas if self.append_only(schema)]),
        ):
            if some:
                self._ask(lambda c, name=name, some=some: publication.renew(c, name, *publication.parts(some)))  # type: ignore[misc]

    def append_only(self, schema: TableSchema) -> bool:
        settings = settings_of(self._settings, schema.id, schema.settings_from)
        return settings.append_only and settings.capture != "trigger"

    def identify(self, oids: Collection[int]) -> Identified:
        """Set the replica identities of tables whose settings say so, where the role owns them."""
        return self._ask(lambda c: replica_identity.identify(c, oids, self._settings, self._interrupted.is_set))

    def updates_refused(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables whose updates and deletes PostgreSQL refuses while they are published; waits for no lock."""
        tables = [schema.oid for schema in schemas if not self.append_only(schema)]
        if self._group.publication is not None or not tables:
            return frozenset()
        return frozenset(self._ask(lambda c: refused_heaps(c, tables, self._publications[0])))

    def unpublished(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables that are missing in their publication, so that changes of them are not in the stream."""
        if self._group.publication is not None or not schemas:
            return frozenset()
        main, append = (self._ask(partial(contents.tables_of, name=name)) for name in self._publications)
        kept = self.by_triggers()
        there = {*self._working(kept), *main}
        return frozenset(
            schema.oid for schema in schemas
            if schema.oid not in (append if self.append_only(schema) and schema.oid not in kept else there)
        )  # fmt: skip

    def appends(self) -> bool:
        """Whether the group has a publication of append-only tables."""
        return self._group.publication is None and self._ask(partial(contents.exists, name=self._publications[1]))

    def changes_counted(self, oids: Sequence[int]) -> dict[int, dict[int, int]]:
        """Updates and deletes in PostgreSQL's statistics, for each table by heap."""
        return self._ask(partial(changes_counted, oids=oids))

    # ---- what triggers capture

    def by_triggers(self) -> frozenset[int]:
        """The tables that are captured by triggers although the group streams."""
        if self._group.publication is not None:
            return frozenset()
        append = self._publications[1]
        return frozenset(self._ask(lambda c: published.captured(c, append)))

    def stays_on_triggers(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables that triggers will capture beside a slot."""
        return self._wanted(schemas) if self._may_fill else frozenset()

    def misplaced(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables that `publish` would have captured in another way than they are."""
        if self._group.publication is not None or not schemas:
            return frozenset()
        return (self._wanted(schemas) ^ self.by_triggers()) & {schema.oid for schema in schemas}

    def maintain_triggers(self) -> bool:
        """Have altered tables captured as they are, delete what the WAL has, and remove what is not needed any more.

        Raises SourceBusy if tables are locked; the rest is done. Returns whether anything is left.
        """
        if self._group.publication is not None or not self._ask(has_buffers):
            return False
        with self._altering:
            connection = self._extra_session()
            kept = published.captured(connection, self._publications[1])
            place, stopped = self._place(), self._interrupted.is_set
            try:
                published.follow(connection, place, kept, lambda oids: self._described(connection, oids), stopped)
            finally:
                published.empty(connection, place.lane, self._deleted, stopped)
            published.clear(connection, place, partial(self._passed, connection), 0.0, stopped)
            return published.exists(connection, place)

    def _extra_session(self) -> Connection:
        """A session of its own: what it does may take long, and is repeated every second."""
        if self._extra is None or not alive(self._extra):
            if self._extra is not None:
                self._sessions.discard(self._extra)
                self._extra.close()
            self._extra = self._connect()
        return self._extra

    def close(self) -> None:
        super().close()
        with self._altering:
            if self._extra is not None:
                self._extra.close()
                self._extra = None

    def clear_other_lane(self) -> None:
        """Drop what the group has of triggers that no table needs. Raises SourceBusy if tables are locked."""
        with self._altering, self._session() as connection:
            passed, stopped = partial(self._passed, connection), self._interrupted.is_set
            published.clear(connection, self._place(), passed, LOCKED_SECONDS, stopped)

    def _change_ways(self, schemas: Sequence[TableSchema]) -> dict[int, Wal2LakeError]:
        """Have tables captured by triggers, or from the WAL again; the reasons of those that can't be.

        A table that is locked stays as it is, if it is captured, and is tried again.
        """
        wanted, kept = self._wanted(schemas), self.by_triggers()
        if not wanted and not kept:
            return {}
        refused: dict[int, Wal2LakeError] = {}
        working = self._working(kept)
        with self._session() as connection:
            place = self._place()
            for schema in schemas:
                if schema.oid in wanted and schema.oid not in working:
                    error = self._begin(connection, place, schema)
                    if error is not None and schema.oid in kept:
                        # Its triggers do not tell of everything any more.
                        published.leave(connection, place, schema.oid)
                    if error is not None and self._setting(schema) == "trigger":
                        refused[schema.oid] = error
                elif schema.oid in kept and schema.oid not in wanted:
                    self._end(connection, place, schema)
            for oid in self._existing(connection, kept - {schema.oid for schema in schemas}):
                published.leave(connection, place, oid)
        return refused

    def _begin(self, connection: Connection, place: published.Place, schema: TableSchema) -> Wal2LakeError | None:
        error: Wal2LakeError | None
        if not self._may_fill:
            error = SourceRefused(
                operation="capturing", object=str(schema.id),
                cause=f"output plugin {self._config.source.plugin} can't tell what triggers write",
                remedy="[source] plugin = 'pgoutput'; or leave out capture for this table",
            )  # fmt: skip
        else:
            try:
                error = published.begin(connection, place, schema, LOCKED_SECONDS, self._interrupted.is_set)
            except SourceBusy as busy:
                error = blocked(connection, [schema.oid], busy)
        if error is None:
            log.info("%s is captured by triggers from here on", schema.id)
        else:
            log.info("%s can't be captured by triggers: %s", schema.id, error)
        return error

    def _end(self, connection: Connection, place: published.Place, schema: TableSchema) -> None:
        append = self.append_only(schema)
        try:
            error = published.end(connection, place, schema, append, LOCKED_SECONDS, self._interrupted.is_set)
        except SourceBusy as busy:
            error = blocked(connection, [schema.oid], busy)
        if isinstance(error, UpdatesRefused):
            # It may not have triggers, and can't be published: nothing of it is captured.
            published.leave(connection, place, schema.oid)
        elif error is None:
            log.info("%s is captured from the WAL from here on", schema.id)
        else:
            log.info("%s is captured by triggers until that can end: %s", schema.id, error)

    def _wanted(self, schemas: Sequence[TableSchema]) -> frozenset[int]:
        """The tables that are to be captured by triggers: by their settings, or because they can't be published."""
        settings = {schema.oid: self._setting(schema) for schema in schemas}
        open_ = [
            schema.oid for schema in schemas
            if settings[schema.oid] == "auto" and self._may_fill and schema.where is None
            and not self.append_only(schema)
        ]  # fmt: skip
        refused = self._ask(lambda c: refused_heaps(c, open_)) if open_ else {}
        unidentified = {oid for oid, heaps in refused.items() if any(heap.unidentified for heap in heaps)}
        return frozenset(oid for oid, setting in settings.items() if setting == "trigger" or oid in unidentified)

    def _setting(self, schema: TableSchema) -> str:
        return self._config.capture_of(self._group, settings_of(self._settings, schema.id, schema.settings_from))

    @property
    def _may_fill(self) -> bool:
        """Whether triggers can capture single tables. Plugins that know no publications give no buffers."""
        return self._config.source.plugin == PGOUTPUT and not self._group.leafwise

    def _working(self, kept: Collection[int]) -> frozenset[int]:
        """Those of them that triggers capture wholly."""
        if not kept:
            return frozenset()
        found = self._ask(lambda c: trigger_conditions(c, None, kept))
        bypassed = self._ask(lambda c: trigger_obstacles(c, kept))
        broken = (Condition.MISSING, Condition.DISABLED)
        return frozenset(oid for oid, is_ in found.items() if is_ not in broken and oid not in bypassed)

    def _existing(self, connection: Connection, oids: Collection[int]) -> Iterator[int]:
        """What was captured of tables that were dropped is still to be read."""
        rows = connection.execute("SELECT oid::int8 FROM pg_class WHERE oid = ANY (%s::oid[])", [list(oids)])
        return iter([oid for (oid,) in rows])

    def _described(self, connection: Connection, oids: Collection[int]) -> Sequence[TableSchema]:
        return list(catalog.describe(connection, list(oids), self._settings).values())

    def _place(self) -> published.Place:
        main, append = self._publications
        name = self.slot_name
        streamed = self._ask(lambda c: slot.info(c, name)) is not None
        return published.Place(name, main, append, self.installation.mark, streamed)

    def _passed(self, connection: Connection, buffer: Buffer) -> bool:
        """Whether the slot has passed all rows of a buffer that is not filled any more."""
        after = self._retired_at.get(buffer.name)
        if after is None:
            after = self._retired_at[buffer.name] = wal_written(connection)
        found = slot.info(connection, self.slot_name)
        return found is None or (found.confirmed_flush_lsn or ZERO) >= after

    # ---- the end

    def drop_publication(self) -> None:
        """Drop the group's own publications, not a named one; and its triggers, of whichever time they are."""
        self._drop_lane()
        self.drop_publications()

    def drop_place(self) -> None:
        self._ask(drop_place)

    def drop_publications(self) -> None:
        for name in self._publications:
            if name != self._group.publication:
                self._ask(partial(publication.drop, name=name, mark=self.installation.mark))

    def _drop_lane(self) -> None:
        with self._session() as connection:
            drop_lane(connection, self.slot_name, self.installation.mark, LOCKED_SECONDS, self._interrupted.is_set)
