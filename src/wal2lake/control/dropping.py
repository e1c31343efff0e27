"""Groups that go: nothing of them is left in the source, least of all a slot, which would hold WAL for nobody."""

from __future__ import annotations

import logging

from ..changelog import ChangeLog
from ..config import Config, GroupConfig
from ..source.database import Source
from .store import GroupLease, GroupRecord, StateStore
from .wanting import groups_of

log = logging.getLogger(__name__)


def drop_group(config: Config, store: StateStore, group: GroupConfig) -> None:
    """Drop what a group has: its slot, its publication, its change log. Its lake tables stay. Raises GroupHeld."""
    lease = GroupLease(store.dsn, group.name)
    lease.take()
    source = Source(config, group)
    try:
        source.drop_slot()
        source.drop_publication()
        ChangeLog(config.changelog_path, group.name).remove()
        store.forget_group(group.name)
    finally:
        source.close()
        lease.release()
    log.info("group %s is dropped", group.name)


def leftovers(config: Config, store: StateStore) -> list[GroupRecord]:
    """Groups that have run and that neither the configuration nor a command wants any more."""
    known = {group.name for group in groups_of(config, store.group_wishes())}
    return [record for record in store.groups() if record.name not in known]
