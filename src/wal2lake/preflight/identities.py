"""Judgement of tables whose replica identity the mirror sets itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..schema import TableId
from ..source.tables import RefusedHeap
from .findings import Finding, Severity


def may_identify(heaps: Sequence[RefusedHeap]) -> bool:
    """Whether a run can set what each table or partition lacks."""
    return bool(heaps) and all(heap.owned and heap.unidentified for heap in heaps)


def judge_identities(table: TableId, heaps: Sequence[RefusedHeap], crossing: bool = False) -> Iterator[Finding]:
    """`crossing`: triggers capture it; it is done when the WAL can be used."""
    first = heaps[0]
    of = "" if first.id == table else f" on {len(heaps)} of its partitions"
    when = "before its group changes to the WAL" if crossing else "by the next run"
    yield Finding(
        str(table), Severity.NOTES, f"gets replica identity {first.needs}{of} {when} (auto_replica_identity): "
        f"{first.why}", "No action needed",
    )  # fmt: skip
