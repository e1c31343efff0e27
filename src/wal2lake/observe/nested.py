"""Events in the form of `tail`, with the values of a row and its old key each in an object."""

from __future__ import annotations

from collections.abc import Iterator

from ..change import Truncation
from ..changelog import refused
from ..position import Lsn
from .captured_rows import OPERATIONS, CapturedRows
from .events import Events
from .tail import Change


def changes(events: Events) -> Iterator[Change]:
    """Events in the form of `tail`."""
    found: list[Change] = []
    for run in events.runs:
        if run.part.rendered is None:
            run.part.rendered = list(_of_part(run.part))
        found += run.part.rendered[run.begin : run.end]
    for single in events.singles:
        error = None if isinstance(single.what, Truncation) else str(refused(single.what))
        lsn, seq, _ = single.place
        found.append(Change(str(single.table), single.operation, Lsn(lsn), seq, None, None, None, error=error))
    yield from found if events.order is None else (found[place] for place in events.order)


def _of_part(part: CapturedRows) -> Iterator[Change]:
    schema, meta = part.schema, part.schema.meta
    naming = [column.name for column in schema.naming_columns]
    values, old = part.rows.to_pylist(), part.old.to_pylist()
    for row, all_values in enumerate(values):
        before = old[part.old_of[row]] if part.old_of[row] >= 0 else None
        if before is not None and not schema.key:
            before = {name: before[name] for name in naming}
            before = None if before == {name: all_values[name] for name in naming} else before
        told = {
            name: all_values[name] for name in schema.names if name not in part.absent or not part.absent[name][row]
        }
        yield Change(
            str(part.table), OPERATIONS[part.operation[row]], Lsn(all_values[meta.commit_lsn]), int(part.seq[row]),
            all_values[meta.xid], all_values[meta.commit_ts], told, before, part.unchanged[row],
        )  # fmt: skip
