"""Removes a group from the source, above all its slot, which would hold WAL forever."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..changelog import ChangeLog, LogStorage
from ..config import Config, GroupConfig
from ..errors import OtherInstallation
from ..source import SourceDatabase, connect
from ..source.publishing import append_name, drop_publication, drop_slot, publication_name, slot_info
from ..state import GroupRecord, StateStore
from .desired_tables import groups_of

log = logging.getLogger(__name__)


MakeSource = Callable[[GroupConfig], SourceDatabase]


def drop_group(
    store: StateStore, make_source: MakeSource, logs: LogStorage, group: GroupConfig, wholly: bool = False
) -> None:
    """Drop a group's slot, publications and change log. Its lake tables stay. Raises GroupHeld.

    A slot and publications of the same name that belong to another installation stay. `wholly`: also what groups share.
    """
    lease = store.lease(group.name)
    lease.take()
    source = make_source(group)
    changelog = ChangeLog(logs, group.name)
    try:
        record = next((record for record in store.groups() if record.name == group.name), None)
        if changelog.exists or (record is not None and record.logged_lsn is not None):
            source.drop_slot()
        try:
            source.drop_publication()
            if wholly:
                source.drop_place()
        except OtherInstallation as error:
            log.info("%s: it stays", error)
        changelog.remove()
        store.forget_group(group.name)
    finally:
        source.close()
        lease.release()
    log.info("group %s is dropped", group.name)


def drop_other(config: Config, store: StateStore) -> None:
    """Drop everything that another installation made, by the state store: its lake does not exist. Raises GroupHeld."""
    if not store.exists():
        return
    for record in store.groups():
        lease = store.lease(record.name)
        lease.take()
        try:
            with connect(config.source) as conn:
                if (found := slot_info(conn, record.slot)) is not None and found.database == conn.info.dbname:
                    drop_slot(conn, record.slot)
                for name in (publication_name(record.name), append_name(record.name)):
                    drop_publication(conn, name, force=True)
        finally:
            lease.release()
    store.drop()


def leftovers(config: Config, store: StateStore) -> list[GroupRecord]:
    """Groups that have run and are neither configured nor made by a command."""
    known = {group.name for group in groups_of(config, store.group_specs())}
    return [record for record in store.groups() if record.name not in known]
