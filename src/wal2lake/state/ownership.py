"""The installation that a state store belongs to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import OtherInstallation
from ..installation import Installation


@dataclass(frozen=True)
class Owner:
    """The installation that a store was made for, as stored."""

    id: str
    place: str

    @classmethod
    def of(cls, mine: Installation) -> Owner:
        assert mine.id is not None
        return cls(mine.id, mine.place)


def require_owner(found: Owner | None, mine: Installation, groups: Iterable[str]) -> None:
    """Raise OtherInstallation if a store with these groups does not belong to `mine`. None: the store has no owner."""
    if found is None:
        # It belongs to the lake that has the change logs of its groups.
        names = list(groups)
        if names and not any(mine.has_log(name) for name in names):
            raise refused("unknown")
        return
    # A lake that was deleted and created again in the same place is the same owner.
    if found.id != mine.id and (mine.id is not None or found.place != mine.place):
        raise refused(found.place)


def claim(found: Owner | None, mine: Owner) -> Owner:
    """The owner after `mine` has claimed a store: a lake that was moved or created again replaces its former entry.

    Raises OtherInstallation.
    """
    if found is not None and found.id != mine.id and found.place != mine.place:
        raise refused(found.place)
    return mine


def refused(place: str) -> OtherInstallation:
    return OtherInstallation(object="the state store (schema wal2lake)", place=place)
