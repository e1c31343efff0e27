"""What to apply next to a table: a pure reading of the manifests that it has not had yet.

A plan covers whole manifests, so that it ends at a position common to the group. It stops in front of a manifest that
holds something which can't be carried, and says what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .. import errors
from ..changelog.manifest import Manifest, Refusal, Segment, TableCut, Truncation
from ..errors import SchemaChanged, Wal2LakeError
from ..lake.model import Applied, Batch
from ..position import Lsn
from ..schema import TableSchema

BATCH_BYTES = 512 * 1024 * 1024
"""of segments as they are on disk; a transaction that is larger makes a batch of its own"""


@dataclass(frozen=True)
class LogView:
    """The parts of the change log that a plan looks at."""

    schema: Callable[[int, int], TableSchema]
    """of a table's oid and a schema version"""
    path: Callable[[Segment], Path]
    last_commit: Callable[[Segment], Lsn]
    """highest commit LSN in a segment"""


@dataclass(frozen=True)
class Plan:
    batch: Batch | None
    """what can be applied; None: not even a position to move to"""
    obstacle: Wal2LakeError | None
    """what stands after it, and has to be dealt with before anything more is applied"""


@dataclass
class _Gathered:
    segments: list[tuple[Path, Segment]] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    bytes: int = 0
    last: Manifest | None = None
    straddles: bool = False


def plan(
    applied: Applied,
    manifests: Iterable[Manifest],
    log: LogView,
    limit: int = BATCH_BYTES,
    newest: Manifest | None = None,
) -> Plan:
    """The next batch for a table from manifests in order; those that it has already are passed over.

    With `newest`, manifests that do not name the table may be left out; a batch that takes all then ends there.
    """
    gathered = _Gathered()
    obstacle: Wal2LakeError | None = None
    oid = applied.schema.oid
    for manifest in manifests:
        if manifest.number <= applied.manifest:
            continue
        cut = manifest.tables.get(oid)
        if cut is not None:
            if gathered.bytes and gathered.bytes + cut.bytes > limit:
                break
            obstacle = _take(gathered, applied, cut, log)
            if obstacle is not None:
                break
        gathered.last = manifest
        gathered.straddles |= manifest.from_lsn < applied.lsn
    else:
        if gathered.last is not None and newest is not None and newest.number > gathered.last.number:
            gathered.last = newest
    return Plan(_batch(gathered, applied), obstacle)


def _take(gathered: _Gathered, applied: Applied, cut: TableCut, log: LogView) -> Wal2LakeError | None:
    for refusal in cut.refusals:
        if not applied.lsn.includes(refusal.commit_lsn):
            return refused(refusal)
    wanted: list[Segment] = []
    for segment in cut.segments:
        if not log.schema(cut.oid, segment.schema).same_shape(applied.schema):
            if applied.lsn.includes(log.last_commit(segment)):
                continue
            return SchemaChanged(
                table=str(applied.schema.id),
                cause=difference(applied.schema, log.schema(cut.oid, segment.schema)),
            )
        wanted.append(segment)
    gathered.segments.extend((log.path(segment), segment) for segment in wanted)
    gathered.truncations.extend(t for t in cut.truncations if not applied.lsn.includes(t.commit_lsn))
    gathered.bytes += sum(segment.bytes for segment in wanted)
    return None


def _batch(gathered: _Gathered, applied: Applied) -> Batch | None:
    if gathered.last is None:
        return None
    return Batch(
        to_lsn=max(gathered.last.to_lsn, applied.lsn),
        to_manifest=gathered.last.number,
        segments=tuple(gathered.segments),
        truncations=tuple(gathered.truncations),
        skip_before=applied.lsn if gathered.straddles else None,
    )


def refused(refusal: Refusal) -> Wal2LakeError:
    """The error that a refusal in the change log stands for."""
    kind = getattr(errors, refusal.error, None)
    if not (isinstance(kind, type) and issubclass(kind, Wal2LakeError)):
        kind = errors.TableError
    return kind(**refusal.fields)


def difference(before: TableSchema, after: TableSchema) -> str:
    """What changed between two shapes of a table, in words, by column name."""
    old = {column.name: column.lake for column in before.columns}
    new = {column.name: column.lake for column in after.columns}
    parts = [f"column {name} was added" for name in new if name not in old]
    parts += [f"column {name} is gone" for name in old if name not in new]
    parts += [
        f"column {name} became {new[name]}, was {old[name]}" for name in new if old.get(name, new[name]) != new[name]
    ]
    if before.key != after.key:
        parts.append(f"the key became ({', '.join(after.key) or 'none'}), was ({', '.join(before.key) or 'none'})")
    return "; ".join(parts) or "the order of its columns changed"
