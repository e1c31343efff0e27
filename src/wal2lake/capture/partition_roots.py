"""Which table a change of a partition belongs to: the one that the partition had when the change committed.

The stream does not say which one that was, and the catalog has the present one only. Where the change log does not
prove it, the change is given to one table, and marked for all that may be meant: each of them exchanges the partition
before it applies more, and leaves its changes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..changelog import ChangeLog
from ..config import GroupTables, TableConfig
from ..position import ZERO, Lsn
from ..schema import Membership, TableSchema
from ..source import CatalogReader
from ..source.publishing import append_name, publication_name


@dataclass(frozen=True)
class _Doubted:
    root: int
    """the table that the changes are given to"""
    others: frozenset[int]
    """the tables that may have had the partition"""


class PartitionRoots:
    """What is known of the partitions in the stream, for the decoder and the manifests."""

    def __init__(
        self, catalog: CatalogReader, group: str, changelog: ChangeLog, overrides: Mapping[str, TableConfig],
        published_only: bool,
    ) -> None:  # fmt: skip
        self._catalog, self._group, self._log, self._published_only = catalog, group, changelog, published_only
        self._named = isinstance(overrides, GroupTables) and overrides.group.publication is not None
        self.attached: dict[int, tuple[Membership, ...]] = {}
        """partitions that may have been others before their ATTACH, published as such: their membership now"""
        self._doubted: dict[int, _Doubted] = {}
        """partitions that may have had another table when their changes committed"""

    def root_of(self, oid: int, present: int, commit_lsn: Lsn) -> int:
        """The table that a change is given to. `present`: that of the relation in the catalog, or itself."""
        return self._former(oid, commit_lsn) if present == oid else self._published(oid, present)

    def _former(self, oid: int, commit_lsn: Lsn) -> int:
        """The table that a relation was a partition of when the change was made, if it is none now.

        The change was sent, so the relation was published: by itself, or as a partition. A partition that was detached
        may have been published by itself since.
        """
        if self._named:
            return oid
        root = self._log.leaves.root_of(oid)
        if root is None:
            return oid
        published = self._all_published()
        if oid in published and commit_lsn >= self._log.leaves.published_since(oid):
            return oid
        # A dropped table is in no publication, and its partitions were dropped with it.
        dropped = root not in published and root not in self._catalog.tables([root])
        return root if root in published or (dropped and not self._log.leaves.was_published(oid, commit_lsn)) else oid

    def _published(self, leaf: int, root: int) -> int:
        """The table whose publication has sent a change; the present one may be in another group."""
        if self._named:
            return root
        known = self._log.leaves.root_of(leaf)
        if known is None or known == root:
            return root
        published = self._all_published()
        return known if known in published and root not in published else root

    def _all_published(self) -> frozenset[int]:
        """The tables in the group's publications, by themselves or by their buffers."""
        main, append = publication_name(self._group), append_name(self._group)
        return self._catalog.published(main) | self._catalog.published(append)

    def note(
        self, leaf: int, root: int, schema: TableSchema | None, commit_lsn: Lsn
    ) -> tuple[Membership, ...]:  # fmt: skip
        """Record the membership of a partition whose change is given to a table.

        The message does not say whether its rows were written before the ATTACH or after it; the apply decides.
        """
        found = _levels(leaf, schema)
        created = _created(found)
        if not created and (others := self._other_roots(leaf, root, commit_lsn)):
            before = self._doubted[leaf].others if leaf in self._doubted else frozenset()
            self._doubted[leaf] = _Doubted(root, others | before)
        if leaf in self.attached or (not created and self._may_be_older(leaf, root, bool(found), commit_lsn)):
            self.attached[leaf] = found
        return found

    def may_be_of_others(self, leaf: int, root: int, schema: TableSchema | None) -> bool:
        """Whether changes may be of another table, if the place of their commit is unknown."""
        return not _created(_levels(leaf, schema)) and bool(self._other_roots(leaf, root, ZERO))

    def _other_roots(self, leaf: int, root: int, commit_lsn: Lsn) -> frozenset[int]:
        """The known tables that a change of a partition may be of, but the one that it is given to."""
        return frozenset(oid for oid in self._log.leaves.roots_of(leaf, commit_lsn) if oid not in (None, root))

    def _may_be_older(self, leaf: int, root: int, is_member: bool, commit_lsn: Lsn) -> bool:
        """Whether a change may be from before the ATTACH, and was sent as one of the partition itself or of another
        table. `is_member`: it has the table now, perhaps for a second time."""
        if leaf in self._doubted or self._may_have_been_published(leaf, commit_lsn):
            return True
        unknown = is_member or None in self._log.leaves.roots_of(leaf, commit_lsn)
        return unknown and not self._log.leaves.tables() <= {root}

    def doubts(self, upto: Lsn) -> Mapping[int, frozenset[int]]:
        """Partitions that may have had other tables when changes before a position committed, with those tables.

        Partitions of which that is certain from this position on are forgotten.
        """
        found = {leaf: doubted.others for leaf, doubted in self._doubted.items()}
        later = {leaf: self._other_roots(leaf, self._doubted[leaf].root, upto) for leaf in found}
        self._doubted = {leaf: _Doubted(self._doubted[leaf].root, others) for leaf, others in later.items() if others}
        return found

    def _may_have_been_published(self, oid: int, commit_lsn: Lsn) -> bool:
        return self._named or not self._published_only or self._log.leaves.was_published(oid, commit_lsn)


def _levels(leaf: int, root: TableSchema | None) -> tuple[Membership, ...]:
    return next((heap.levels for heap in root.heaps if heap.oid == leaf), ()) if root is not None else ()


def _created(levels: tuple[Membership, ...]) -> bool:
    """Whether a partition has had its table from the beginning."""
    return bool(levels) and all(level.made for level in levels)
