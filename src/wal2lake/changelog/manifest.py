"""The manifest: one cut of a group's change log, at a commit boundary.

Manifest n holds exactly the transactions with from_lsn <= commit LSN < to_lsn; the next one begins at its to_lsn.
For every table that changed it names the segment files and what stands between rows: truncations and refusals.
A manifest that exists is complete and durable; nothing of it changes afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ..position import Lsn
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
    """updates that moved a row to another key"""
    unchanged: int
    """updates with a column that was sent as unchanged TOAST and could not be filled in from the old row"""
    leaves: tuple[int, ...] = ()
    """of a partitioned table: oids of the partitions that the changes are in"""
    sha256: str = ""
    """of the whole file; empty where it was written before files had one"""
    split: int = 0
    """updates that were written as a delete and an insert, and are counted in both"""

    @property
    def only_inserts(self) -> bool:
        return self.inserts == self.rows

    @property
    def changes(self) -> int:
        """As they were made in the source."""
        return self.rows - self.split


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE: rows that came before (commit_lsn, seq) are gone."""

    commit_lsn: Lsn
    seq: int
    relation: int | None = None
    """of a partitioned table: the oid of the one partition that was emptied; None: the whole table"""
    predicate: str | None = None
    """PostgreSQL's constraint of that partition (pg_get_partition_constraintdef), None if it could not be had"""


@dataclass(frozen=True)
class Refusal:
    """A change that can't be carried: nothing of the table is applied from its transaction on."""

    commit_lsn: Lsn
    seq: int
    error: str
    """name of a class in errors.py"""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TableCut:
    """What one table has in a manifest."""

    oid: int
    name: str
    segments: tuple[Segment, ...] = ()
    truncations: tuple[Truncation, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of its segments and truncations: what there is to read."""
        return sum(segment.rows for segment in self.segments) + len(self.truncations)

    @property
    def bytes(self) -> int:
        """What its segments take on disk."""
        return sum(segment.bytes for segment in self.segments)


@dataclass(frozen=True)
class Manifest:
    number: int
    from_lsn: Lsn
    to_lsn: Lsn
    transactions: int
    commit_ts: datetime | None
    """commit time of the last transaction in it"""
    tables: Mapping[int, TableCut]

    @property
    def bytes(self) -> int:
        """What its segments take on disk."""
        return sum(cut.bytes for cut in self.tables.values())

    def of(self, oid: int) -> Manifest:
        """The same cut with one table alone."""
        return replace(self, tables={oid: self.tables[oid]})

    def to_json(self) -> str:
        return seal({
            "format": FORMAT, "number": self.number, "from_lsn": str(self.from_lsn), "to_lsn": str(self.to_lsn),
            "transactions": self.transactions,
            "commit_ts": self.commit_ts.isoformat() if self.commit_ts else None,
            "tables": [_table_to_json(cut) for cut in self.tables.values()],
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises ValueError if it is not the text that was written."""
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
        )


def _table_to_json(cut: TableCut) -> dict[str, Any]:
    return {
        "oid": cut.oid,
        "name": cut.name,
        "segments": [vars(segment) for segment in cut.segments],
        "truncations": [{**vars(t), "commit_lsn": str(t.commit_lsn)} for t in cut.truncations],
        "refusals": [{**vars(r), "commit_lsn": str(r.commit_lsn), "fields": dict(r.fields)} for r in cut.refusals],
    }


def _table_from_json(data: Mapping[str, Any]) -> TableCut:
    return TableCut(
        oid=data["oid"],
        name=data["name"],
        segments=tuple(Segment(**{**one, "leaves": tuple(one.get("leaves", ()))}) for one in data["segments"]),
        truncations=tuple(Truncation(**{**t, "commit_lsn": Lsn.parse(t["commit_lsn"])}) for t in data["truncations"]),
        refusals=tuple(Refusal(**{**r, "commit_lsn": Lsn.parse(r["commit_lsn"])}) for r in data["refusals"]),
    )
