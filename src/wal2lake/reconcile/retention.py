"""Which manifests a table does not need any more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..position import LakeVersion


@dataclass(frozen=True)
class Retention:
    """The state store's knowledge of a lake table, which limits what may be deleted from the change log.

    Changes are deleted only after the state store has the version of the lake table that includes them: otherwise an
    older version that is restored later would continue with a gap.
    """

    stored: LakeVersion
    """the version in the state store"""
    stored_upto: int = 0
    """the last manifest that this version includes"""
    gave_up: bool = False
    """changes that are not applied may be deleted: the next version will be a copy"""
    as_partition: int | None = None
    """a manifest that may have changes of it as part of another table, which it was a partition of"""

    def done_with(self, needless: int, version: LakeVersion) -> int:
        """The highest manifest that may be deleted for a table at `version` that needs none up to `needless`."""
        if self.as_partition is not None and not self.gave_up:
            needless = min(needless, self.as_partition - 1)
        return needless if self.stored == version else min(needless, self.stored_upto)


def needless(last: int, useless: bool, placed: bool, waiting: int | None) -> int:
    """The highest manifest that a table does not need, if `last` is the newest one.

    `useless`: a copy will have all changes. `placed`: the table's position in the lake is known. `waiting`: the first
    manifest that is not applied.
    """
    if useless:
        return last
    if not placed:
        return 0
    return last if waiting is None else waiting - 1
