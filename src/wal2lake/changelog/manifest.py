"""The manifest: one flush of a group's change log, ending at a commit boundary.

Manifest n holds exactly the transactions with from_lsn <= commit LSN < to_lsn; the next one begins at its to_lsn.
For each changed table it names the segment files and what happened between rows: truncations and refusals.
A manifest that exists is complete, durable and immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ..change import Refusal, Truncation
from ..position import Lsn
from ..schema import Membership
from .checksum import seal, unseal

FORMAT = 1


@dataclass(frozen=True)
class Segment:
    """A Parquet file of changes of one table, all with one schema, ordered by (commit LSN, seq)."""

    file: str
    """path below the group's directory"""
    rows: int
    bytes: int
    schema: int
    """version of the table's schema: `schemas/<oid>/<version>.json`"""
    inserts: int
    updates: int
    deletes: int
    key_changes: int
    """updates that changed the key of a row"""
    unchanged: int
    """updates with an unchanged TOAST value that the old row did not have"""
    leaves: tuple[int, ...] = ()
    """of a partitioned table: oids of the partitions of its changes"""
    sha256: str = ""
    """of the whole file; empty if it was written before checksums existed"""
    split: int = 0
    """updates that were written as a delete and an insert; they are counted in both"""

    @property
    def only_inserts(self) -> bool:
        return self.inserts == self.rows

    @property
    def changes(self) -> int:
        """Number of changes as they were made in the source."""
        return self.rows - self.split


@dataclass(frozen=True)
class ManifestEntry:
    """What a manifest says of one table."""

    oid: int
    name: str
    segments: tuple[Segment, ...] = ()
    truncations: tuple[Truncation, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    attached: Mapping[int, tuple[Membership, ...]] = field(default_factory=dict)
    """partitions that may have changes from before their ATTACH, with their membership when they were decoded"""
    doubted: tuple[int, ...] = ()
    """partitions whose changes were given to another table, and may be of this one, or of a time when it had them"""

    @property
    def partitions(self) -> frozenset[int]:
        """Oids of the partitions of its changes and truncations."""
        emptied = (each.relation for each in self.truncations if each.relation is not None)
        return frozenset((*(leaf for segment in self.segments for leaf in segment.leaves), *emptied))

    @property
    def rows(self) -> int:
        """Rows of its segments, and truncations."""
        return sum(segment.rows for segment in self.segments) + len(self.truncations)

    @property
    def bytes(self) -> int:
        """Bytes of its segments on disk."""
        return sum(segment.bytes for segment in self.segments)


@dataclass(frozen=True)
class Manifest:
    number: int
    from_lsn: Lsn
    to_lsn: Lsn
    transactions: int
    commit_ts: datetime | None
    """commit time of the last transaction in it"""
    tables: Mapping[int, ManifestEntry]
    token: str | None = None
    """what a stream resumes from at its end, where a position alone does not say that"""

    @property
    def bytes(self) -> int:
        """Bytes of its segments on disk."""
        return sum(cut.bytes for cut in self.tables.values())

    def of(self, oid: int) -> Manifest:
        """The same manifest with one table only."""
        return replace(self, tables={oid: self.tables[oid]})

    def to_json(self) -> str:
        return seal({
            "format": FORMAT, "number": self.number, "from_lsn": str(self.from_lsn), "to_lsn": str(self.to_lsn),
            "transactions": self.transactions,
            "commit_ts": self.commit_ts.isoformat() if self.commit_ts else None,
            "tables": [_table_to_json(cut) for cut in self.tables.values()],
            **({} if self.token is None else {"token": self.token}),
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises ValueError if the text differs from what was written."""
        data = unseal(text, "format")
        if data["format"] != FORMAT:
            raise ValueError(f"manifest format {data['format']}, this version reads {FORMAT}")
        cuts = [_table_from_json(table) for table in data["tables"]]
        return cls(
            number=data["number"],
            from_lsn=Lsn.parse(data["from_lsn"]),
            to_lsn=Lsn.parse(data["to_lsn"]),
            transactions=data["transactions"],
            commit_ts=datetime.fromisoformat(data["commit_ts"]) if data["commit_ts"] else None,
            tables={cut.oid: cut for cut in cuts},
            token=data.get("token"),
        )


def _table_to_json(cut: ManifestEntry) -> dict[str, Any]:
    return {
        "oid": cut.oid,
        "name": cut.name,
        "segments": [vars(segment) for segment in cut.segments],
        "truncations": [_truncation_to_json(t) for t in cut.truncations],
        "refusals": [{**vars(r), "commit_lsn": str(r.commit_lsn), "fields": dict(r.fields)} for r in cut.refusals],
        **({"attached": {str(leaf): [vars(level) for level in cut.attached[leaf]] for leaf in cut.attached}}
           if cut.attached else {}),
        **({"doubted": cut.doubted} if cut.doubted else {}),
    }  # fmt: skip


def _table_from_json(data: Mapping[str, Any]) -> ManifestEntry:
    return ManifestEntry(
        oid=data["oid"],
        name=data["name"],
        segments=tuple(Segment(**{**one, "leaves": tuple(one.get("leaves", ()))}) for one in data["segments"]),
        truncations=tuple(map(_truncation_from_json, data["truncations"])),
        refusals=tuple(Refusal(**{**r, "commit_lsn": Lsn.parse(r["commit_lsn"])}) for r in data["refusals"]),
        attached={
            int(leaf): tuple(Membership(**level) for level in levels)
            for leaf, levels in data.get("attached", {}).items()
        },
        doubted=tuple(data.get("doubted", ())),
    )


def _truncation_to_json(truncation: Truncation) -> dict[str, Any]:
    levels = [vars(level) for level in truncation.levels]
    return {**vars(truncation), "commit_lsn": str(truncation.commit_lsn), "levels": levels}


def _truncation_from_json(data: Mapping[str, Any]) -> Truncation:
    columns = data.get("columns")
    names = None if columns is None else tuple((name, number) for name, number in columns)
    levels = tuple(Membership(**level) for level in data.get("levels", ()))
    return Truncation(**{**data, "commit_lsn": Lsn.parse(data["commit_lsn"]), "columns": names, "levels": levels})
