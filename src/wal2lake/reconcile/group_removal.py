"""Groups that go: nothing of them is left in the source, least of all a slot, which would hold WAL for nobody."""

from __future__ import annotations

import logging

from ..changelog import ChangeLog
from ..config import Config, GroupConfig
from ..errors import OtherInstallation
from ..source import connect, publication, slot
from ..source.database import Source
from ..state import GroupLease, GroupRecord, StateStore
from .desired_tables import groups_of

log = logging.getLogger(__name__)


def drop_group(config: Config, store: StateStore, group: GroupConfig) -> None:
    """Drop what a group has: its slot, its publications, its change log. Its lake tables stay. Raises GroupHeld.

    A slot and publications of the same name that are another installation's stay.
    """
    lease = GroupLease(store.dsn, group.name)
    lease.take()
    source = Source(config, group)
    changelog = ChangeLog(config.changelog_path, group.name)
    try:
        record = next((record for record in store.groups() if record.name == group.name), None)
        if changelog.exists or (record is not None and record.logged_lsn is not None):
            source.drop_slot()
        try:
            source.drop_publication()
        except OtherInstallation as error:
            log.info("%s: it stays", error)
        changelog.remove()
        store.forget_group(group.name)
    finally:
        source.close()
        lease.release()
    log.info("group %s is dropped", group.name)


def drop_other(config: Config, store: StateStore) -> None:
    """Drop what the state store says that another installation has made: its lake is gone. Raises GroupHeld."""
    if not store.exists():
        return
    for record in store.groups():
        lease = GroupLease(store.dsn, record.name)
        lease.take()
        try:
            with connect(config.source) as conn:
                if (found := slot.info(conn, record.slot)) is not None and found.database == conn.info.dbname:
                    slot.drop(conn, record.slot)
                for name in (publication.publication_name(record.name), publication.append_name(record.name)):
                    publication.drop(conn, name, force=True)
        finally:
            lease.release()
    store.drop()


def leftovers(config: Config, store: StateStore) -> list[GroupRecord]:
    """Groups that have run and that neither the configuration nor a command wants any more."""
    known = {group.name for group in groups_of(config, store.group_specs())}
    return [record for record in store.groups() if record.name not in known]
