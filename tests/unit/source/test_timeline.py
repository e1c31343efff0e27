"""The history of a timeline says where each one before was left."""

from __future__ import annotations

from wal2lake.position import Lsn
from wal2lake.source.publishing.timeline import parse

HISTORY = """# a comment
1\t0/5000158\tno recovery target specified

2\t1/A0\tbefore 2024-01-01 00:00:00+00
"""


def test_each_earlier_timeline_has_the_place_where_it_was_left() -> None:
    assert parse(HISTORY) == {1: Lsn.parse("0/5000158"), 2: Lsn.parse("1/A0")}
    assert parse("") == {}
