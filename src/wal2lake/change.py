"""What a change is.

A change is ordered by (commit LSN, seq); seq counts inside its transaction, over all tables. LSNs of single rows are
not monotonic across interleaved transactions and are never kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .position import Lsn
from .schema import Membership

MARKED_LSN = 0x7A11_57EA_3D5C_96B1
"""placeholder for the commit LSN of an open transaction"""
MARKED_US = 0x0B24_68AC_E135_79D7
"""placeholder for its commit time, in microseconds since 1970; outside of PostgreSQL's range"""


@dataclass(frozen=True)
class Truncation:
    """A TRUNCATE: rows that came before (commit_lsn, seq) are gone."""

    commit_lsn: Lsn
    seq: int
    relation: int | None = None
    """of a partitioned table: the oid of the one partition that was emptied; None: the whole table"""
    predicate: str | None = None
    """PostgreSQL's constraint of that partition (pg_get_partition_constraintdef); None if it is unknown"""
    xid: int | None = field(default=None, compare=False)
    """of its transaction, 32 bits; None in change logs of earlier versions"""
    columns: tuple[tuple[str, int], ...] | None = None
    """names and attribute numbers of the columns in `predicate`; None in change logs of earlier versions"""
    levels: tuple[Membership, ...] = ()
    """the membership that `predicate` is of, which may be later than the change"""


@dataclass(frozen=True)
class Refusal:
    """A change that can't be carried: nothing of the table is applied from its transaction on."""

    commit_lsn: Lsn
    seq: int
    error: str
    """name of a class in errors.py"""
    fields: Mapping[str, Any] = field(default_factory=dict)
    xid: int | None = field(default=None, compare=False)
    """of its transaction, 32 bits; None in change logs of earlier versions"""
