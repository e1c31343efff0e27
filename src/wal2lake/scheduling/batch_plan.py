"""What to apply next to a table: a pure reading of the manifests that it has not had yet.

A plan covers whole manifests, so that it ends at a position common to the group. It stops in front of a manifest that
holds something which can't be carried, and says what. Changes that were written with other columns than the lake table
has are part of it: the table gets the columns of the last of them first. Only where rows are told apart by another key
from some commit on does it end there, within a manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import errors
from ..changelog.manifest import Manifest, Refusal, Segment, TableCut, Truncation
from ..errors import CopyNeeded, Wal2LakeError
from ..evolution import Incompatible, Unclear, follow, keyed_as, numbered, rekeyed, require_fillable, with_leaves
from ..lake.model import Applied, Batch
from ..position import ZERO, Lsn
from ..reconcile.change_policy import FOLLOW, Policy, unfollowed
from ..schema import TableSchema

BATCH_BYTES = 512 * 1024 * 1024
"""of segments as they are on disk; a transaction that is larger makes a batch of its own"""
BATCH_SEGMENTS = 2000
"""each is a file for Spark to open"""
BATCH_ROWS = 20_000_000


@dataclass(frozen=True)
class Limit:
    """What a batch may hold at most; a manifest that is larger makes a batch of its own."""

    bytes: int = BATCH_BYTES
    segments: int = BATCH_SEGMENTS
    rows: int = BATCH_ROWS


LIMIT = Limit()


@dataclass(frozen=True)
class LogView:
    """The parts of the change log that a plan looks at."""

    schema: Callable[[int, int], TableSchema]
    """of a table's oid and a schema version"""
    path: Callable[[Segment], Path]
    commits: Callable[[Segment], tuple[Lsn, Lsn]]
    """lowest and highest commit LSN in a segment"""
    begins: Callable[[Segment], tuple[Lsn, int]]
    """commit LSN and seq of a segment's first change"""


@dataclass(frozen=True)
class Until:
    """A position within the log that a batch must not pass, and partitions whose changes before it don't count."""

    lsn: Lsn
    left_out: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Plan:
    batch: Batch | None
    """what can be applied; None: not even a position to move to"""
    obstacle: Wal2LakeError | None
    """what stands after it, and has to be dealt with before anything more is applied"""


class _Obstacle(Exception):
    """a change that the plan ends in front of"""

    def __init__(self, error: Wal2LakeError) -> None:
        self.error = error


@dataclass
class _Gathered:
    schema: TableSchema
    """what the table's columns are to be"""
    followed: int
    """the version up to which its columns had followed"""
    segments: list[tuple[Path, Segment]] = field(default_factory=list)
    written: dict[int, TableSchema] = field(default_factory=dict)
    truncations: list[Truncation] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0
    last: Manifest | None = None
    straddles: bool = False
    ends: Lsn | None = None
    """where it ends within the manifest after the last"""
    since: Lsn = ZERO
    """a commit at which the source had that schema"""
    leaves: set[int] = field(default_factory=set)
    """partitions that the changes are in"""
    until: Until | None = None

    def full(self, cut: TableCut, limit: Limit) -> bool:
        """Whether one more manifest would be too much."""
        return bool(self.segments) and (
            self.bytes + cut.bytes > limit.bytes
            or self.rows + cut.rows > limit.rows
            or len(self.segments) + len(cut.segments) > limit.segments
        )


def plan(
    applied: Applied,
    manifests: Iterable[Manifest],
    log: LogView,
    limit: Limit = LIMIT,
    newest: Manifest | None = None,
    policy: Policy = FOLLOW,
    exchanged: Until | None = None,
) -> Plan:
    """The next batch for a table from manifests in order; those that it has already are passed over.

    With `newest`, manifests that do not name the table may be left out; a batch that takes all then ends there.
    With `exchanged`, it ends at that position at the latest.
    """
    gathered = _Gathered(applied.schema, applied.schema.version, until=exchanged)
    obstacle: Wal2LakeError | None = None
    oid = applied.schema.oid
    for manifest in manifests:
        if manifest.number <= applied.manifest:
            continue
        cut = manifest.tables.get(oid)
        straddles = manifest.from_lsn < applied.lsn
        beyond = exchanged is not None and manifest.to_lsn > exchanged.lsn
        if cut is not None and exchanged is not None and beyond:
            cut = _until(cut, exchanged.lsn, log)
        if cut is not None:
            if gathered.full(cut, limit):
                break
            try:
                _take(gathered, cut if not straddles else _rest(cut, applied.lsn, log), log, policy)
            except (_Obstacle, Incompatible, Unclear) as error:
                obstacle = error.error if isinstance(error, _Obstacle) else unfollowed(applied.schema, error, policy)
                break
        gathered.straddles |= straddles
        if exchanged is not None and beyond and gathered.ends is None:
            gathered.ends = exchanged.lsn
        if gathered.ends is not None:
            break
        gathered.last = manifest
    else:
        if gathered.last is not None and newest is not None and newest.number > gathered.last.number:
            gathered.last = newest
    if isinstance(obstacle, CopyNeeded):
        # The copy has all that comes before it, too.
        return Plan(None, obstacle)
    try:
        require_fillable(applied.schema, gathered.schema)
    except Incompatible as error:
        return Plan(None, unfollowed(applied.schema, error, policy))
    return Plan(_batch(gathered, applied), obstacle)


def _rest(cut: TableCut, lsn: Lsn, log: LogView) -> TableCut:
    """What a table has in a manifest without all that is below a position; a segment may begin below it."""
    return replace(
        cut,
        segments=tuple(segment for segment in cut.segments if not lsn.includes(log.commits(segment)[1])),
        truncations=tuple(truncation for truncation in cut.truncations if not lsn.includes(truncation.commit_lsn)),
        refusals=tuple(refusal for refusal in cut.refusals if not lsn.includes(refusal.commit_lsn)),
    )


def _until(cut: TableCut, lsn: Lsn, log: LogView) -> TableCut:
    """What a table has in a manifest without all that is not below a position; a segment may end after it."""
    return replace(
        cut,
        segments=tuple(segment for segment in cut.segments if lsn.includes(log.commits(segment)[0])),
        truncations=tuple(truncation for truncation in cut.truncations if lsn.includes(truncation.commit_lsn)),
        refusals=tuple(refusal for refusal in cut.refusals if lsn.includes(refusal.commit_lsn)),
    )


def _take(gathered: _Gathered, cut: TableCut, log: LogView, policy: Policy) -> None:
    """Add what a manifest has for the table, or nothing of it. Raises _Obstacle, Incompatible or Unclear."""
    for refusal in cut.refusals:
        raise _Obstacle(refused(refusal))
    schema, since = gathered.schema, gathered.since
    ends: Lsn | None = None
    taken: list[Segment] = []
    for segment in _in_order(cut.segments, log):
        own = log.schema(cut.oid, segment.schema)
        # Columns that the lake table was given before its changes could be applied are not taken back; a key is: it
        # tells the rows of these very changes apart.
        followed = segment.schema <= gathered.followed
        following = keyed_as(schema, own) if followed else follow(schema, own, policy.keep_dropped)
        if rekeyed(schema, following) and (gathered.segments or taken):
            ends = _boundary(taken, segment, log)
            break
        if not followed:
            own = numbered(own, following)
            since = since if following == schema else log.commits(segment)[0]
        schema = following
        gathered.written[segment.schema] = own
        taken.append(segment)
    gathered.schema, gathered.since, gathered.ends = schema, since, ends
    gathered.segments += [(log.path(segment), segment) for segment in taken]
    gathered.truncations += [t for t in cut.truncations if ends is None or ends.includes(t.commit_lsn)]
    gathered.bytes += sum(segment.bytes for segment in taken)
    gathered.leaves.update(leaf for segment in taken for leaf in segment.leaves)
    gathered.rows += sum(segment.rows for segment in taken)


def _in_order(segments: Sequence[Segment], log: LogView) -> Sequence[Segment]:
    """Segments by their first change. Partitions are described one by one, so versions alone don't tell the order."""
    if len({segment.schema for segment in segments}) == 1:
        return segments
    return sorted(segments, key=log.begins)


def _boundary(before: Iterable[Segment], segment: Segment, log: LogView) -> Lsn:
    """The commit from which on rows have another key. Raises Incompatible if rows of that commit have the old one."""
    first = log.commits(segment)[0]
    if any(log.commits(earlier)[1] >= first for earlier in before):
        raise Incompatible("its key changed within a transaction that changed its rows, too")
    return first


def _batch(gathered: _Gathered, applied: Applied) -> Batch | None:
    if gathered.last is None and gathered.ends is None:
        return None
    version = max((gathered.followed, *gathered.written))
    schema = replace(with_leaves(gathered.schema, gathered.leaves), version=version)
    position = gathered.ends if gathered.ends is not None else gathered.last.to_lsn if gathered.last else applied.lsn
    left_out = gathered.until.left_out if gathered.until is not None else frozenset()
    return Batch(
        to_lsn=max(position, applied.lsn),
        to_manifest=gathered.last.number if gathered.last is not None else applied.manifest,
        segments=tuple(gathered.segments),
        truncations=tuple(t for t in gathered.truncations if t.relation not in left_out),
        skip_before=applied.lsn if gathered.straddles else None,
        schema=None if schema == applied.schema and schema.heaps == applied.schema.heaps else schema,
        written=gathered.written,
        since=gathered.since,
        end_before=gathered.until.lsn if gathered.until is not None else None,
        left_out=left_out,
    )


def refused(refusal: Refusal) -> Wal2LakeError:
    """The error that a refusal in the change log stands for."""
    if refusal.error == "OperationRefused":
        # Of a change log that an older version has written.
        return CopyNeeded(table=refusal.fields["table"], cause="a change does not tell which row is meant")
    kind = getattr(errors, refusal.error, None)
    if not (isinstance(kind, type) and issubclass(kind, Wal2LakeError)):
        kind = errors.TableError
    return kind(**refusal.fields)
