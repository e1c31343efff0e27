"""The keys of a flat event, which stand beside the columns of its table."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

_OWN = (
    "event_type", "_table", "_schema", "_op", "_lsn", "_seq", "_xid", "_commit_ts", "_position", "_old", "_unchanged",
    "_partition", "_error",
)  # fmt: skip


@dataclass(frozen=True)
class FlatNames:
    """The keys, with more underscores in front where the table has a column of such a name."""

    prefix: str = ""

    @classmethod
    def beside(cls, columns: Collection[str]) -> FlatNames:
        return _beside(tuple(columns))

    def __call__(self, name: str) -> str:
        return self.prefix + name


@lru_cache(maxsize=1024)
def _beside(columns: tuple[str, ...]) -> FlatNames:
    prefix = ""
    while any(prefix + name in columns for name in _OWN):
        prefix += "_"
    return FlatNames(prefix)
