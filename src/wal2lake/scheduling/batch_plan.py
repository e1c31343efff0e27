"""Plans the next batch of a table from the manifests that it has not applied. Pure.

A plan covers whole manifests, so that it ends at a position common to the group. It ends before a manifest with
something that can't be carried, and has the error. Changes that were written with other columns than those of the lake
table are included: the table gets the last columns first. Only where a commit changes the key, or names of columns that
changes before it are known by, does it end at that commit, within a manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..change import Truncation
from ..changelog import ChangeLog, Manifest, ManifestEntry, Segment, refused
from ..errors import CopyNeeded, Wal2LakeError
from ..evolution import (
    Incompatible,
    Unclear,
    Unnumbered,
    follow,
    keyed_as,
    later_members,
    numbered,
    rekeyed,
    require_fillable,
    with_leaves,
)
from ..lake import Applied, Batch, copied, still_visible
from ..position import ZERO, Lsn
from ..reconcile import FOLLOW, Policy, unfollowed
from ..schema import TableSchema
from ..visibility import Visibility

BATCH_BYTES = 512 * 1024 * 1024
"""bytes of segments on disk; a larger transaction is a batch of its own"""
BATCH_SEGMENTS = 2000
"""each is a file for Spark to open"""
BATCH_ROWS = 20_000_000


@dataclass(frozen=True)
class Limit:
    """Limits of a batch; a larger manifest is a batch of its own."""

    bytes: int = BATCH_BYTES
    segments: int = BATCH_SEGMENTS
    rows: int = BATCH_ROWS


LIMIT = Limit()


@dataclass(frozen=True)
class LogView:
    """The parts of the change log that a plan uses."""

    schema: Callable[[int, int], TableSchema]
    """of a table's oid and a schema version"""
    uri: Callable[[Segment], str]
    commits: Callable[[Segment], tuple[Lsn, Lsn]]
    """lowest and highest commit LSN in a segment"""
    begins: Callable[[Segment], tuple[Lsn, int]]
    """commit LSN and seq of a segment's first change"""
    verify: Callable[[Segment], None]
    """raises ChangeLogDamaged if a segment differs from what was written"""
    transactions: Callable[[Segment], Collection[tuple[Lsn, int]]]
    """commit LSN and xid of its changes"""

    @classmethod
    def of(cls, log: ChangeLog) -> LogView:
        return cls(log.schema, log.uri, log.commits, log.begins, log.verify, log.transactions)


@dataclass(frozen=True)
class Until:
    """A position in the log that a batch must not pass, and partitions whose changes before it are skipped."""

    lsn: Lsn
    left_out: frozenset[int] = frozenset()


@dataclass(frozen=True)
class BatchPlan:
    batch: Batch | None
    """what can be applied; None: nothing, not even a position"""
    obstacle: Wal2LakeError | None
    """the error that comes after it, to be handled before more is applied"""
    attached: frozenset[int] = frozenset()
    """what comes after it may be from before the ATTACH of these partitions, or after their DETACH; they are to be
    exchanged first"""


class _Obstacle(Exception):
    """a change before which the plan ends"""

    def __init__(self, error: Wal2LakeError) -> None:
        self.error = error


@dataclass
class _Gathered:
    schema: TableSchema
    """the table's columns after the batch"""
    followed: int
    """the schema version that its columns had"""
    segments: list[tuple[str, Segment]] = field(default_factory=list)
    written: dict[int, TableSchema] = field(default_factory=dict)
    truncations: list[Truncation] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0
    last: Manifest | None = None
    straddles: bool = False
    visibility: Visibility | None = None
    """of the copy, if its snapshot sees transactions of these manifests"""
    ends: Lsn | None = None
    """its end within the manifest after the last"""
    since: Lsn = ZERO
    """a commit at which the source had that schema"""
    leaves: set[int] = field(default_factory=set)
    """partitions of the changes"""
    until: Until | None = None
    unnumbered: Unnumbered = field(default_factory=Unnumbered)
    """columns of the changes that have names only"""

    def full(self, cut: ManifestEntry, limit: Limit) -> bool:
        """Whether one more manifest would exceed the limits."""
        return bool(self.segments) and (
            self.bytes + cut.bytes > limit.bytes
            or self.rows + cut.rows > limit.rows
            or len(self.segments) + len(cut.segments) > limit.segments
        )


def plan_batch(
    applied: Applied,
    manifests: Iterable[Manifest],
    log: LogView,
    limit: Limit = LIMIT,
    newest: Manifest | None = None,
    policy: Policy = FOLLOW,
    exchanged: Until | None = None,
) -> BatchPlan:
    """The next batch for a table from manifests in order; those that it has already are skipped.

    With `newest`, manifests that do not name the table may be missing; a batch that takes all then ends there.
    With `exchanged`, it ends at that position at the latest.
    """
    gathered = _Gathered(applied.schema, applied.schema.version, until=exchanged)
    obstacle: Wal2LakeError | None = None
    attached = frozenset[int]()
    oid = applied.schema.oid
    for manifest in manifests:
        if manifest.number <= applied.manifest:
            continue
        cut = manifest.tables.get(oid)
        straddles = manifest.from_lsn < applied.lsn
        beyond = exchanged is not None and manifest.to_lsn > exchanged.lsn
        visibility = still_visible(applied.visibility, manifest.from_lsn)
        if cut is not None:
            end = exchanged.lsn if exchanged is not None and beyond else None
            cut = _part(cut, applied.lsn if straddles else None, visibility, end, log)
            attached = _joined(applied.schema, cut, exchanged)
            if attached or gathered.full(cut, limit):
                break
            try:
                _take(gathered, cut, log, policy)
            except (_Obstacle, Incompatible, Unclear) as error:
                obstacle = error.error if isinstance(error, _Obstacle) else unfollowed(applied.schema, error, policy)
                break
        gathered.straddles |= straddles
        gathered.visibility = visibility or gathered.visibility
        if exchanged is not None and beyond and gathered.ends is None:
            gathered.ends = exchanged.lsn
        if gathered.ends is not None:
            break
        gathered.last = manifest
    else:
        if gathered.last is not None and newest is not None and newest.number > gathered.last.number:
            gathered.last = newest
    if isinstance(obstacle, CopyNeeded):
        # The copy includes everything before it.
        return BatchPlan(None, obstacle)
    try:
        require_fillable(applied.schema, gathered.schema)
    except Incompatible as error:
        return BatchPlan(None, unfollowed(applied.schema, error, policy))
    return BatchPlan(_batch(gathered, applied), obstacle, attached)


def _part(
    cut: ManifestEntry, start: Lsn | None, visibility: Visibility | None, end: Lsn | None, log: LogView
) -> ManifestEntry:  # fmt: skip
    """A table's part of a manifest from one position to another, without what its copy includes."""
    cut = cut if end is None else _until(cut, end, log)
    cut = cut if start is None else _rest(cut, start, log)
    return cut if visibility is None else _uncopied(cut, visibility, log)


def _joined(lake: TableSchema, cut: ManifestEntry, exchanged: Until | None) -> frozenset[int]:
    """Partitions with changes that the lake table does not know as such, and that may be older than that; and those
    that it knows, with changes that were given to another table and may be its own.

    A TRUNCATE is one if its bounds are of another membership than that which the lake table knows.
    """
    left_out = exchanged.left_out if exchanged is not None else frozenset()
    members = {leaf: cut.attached[leaf] for leaf in cut.partitions - left_out if leaf in cut.attached}
    emptied = {t.relation: t.levels for t in cut.truncations if t.relation is not None and t.predicate is not None}
    members |= {leaf: levels for leaf, levels in emptied.items() if leaf not in left_out}
    known = frozenset(heap.oid for heap in lake.heaps)
    return later_members(lake, members) | known.intersection(cut.doubted) - left_out


def _rest(cut: ManifestEntry, lsn: Lsn, log: LogView) -> ManifestEntry:
    """A table's part of a manifest without changes below a position; a segment may begin below it."""
    return replace(
        cut,
        segments=tuple(segment for segment in cut.segments if not lsn.includes(log.commits(segment)[1])),
        truncations=tuple(truncation for truncation in cut.truncations if not lsn.includes(truncation.commit_lsn)),
        refusals=tuple(refusal for refusal in cut.refusals if not lsn.includes(refusal.commit_lsn)),
    )


def _uncopied(cut: ManifestEntry, visibility: Visibility, log: LogView) -> ManifestEntry:
    """A table's part of a manifest without what its copy includes; a segment may have changes of both kinds."""
    return replace(
        cut,
        segments=tuple(
            segment
            for segment in cut.segments
            if not all(visibility.sees(lsn, xid) for lsn, xid in log.transactions(segment))
        ),
        truncations=tuple(truncation for truncation in cut.truncations if not copied(truncation, visibility)),
        refusals=tuple(refusal for refusal in cut.refusals if not copied(refusal, visibility)),
    )


def _until(cut: ManifestEntry, lsn: Lsn, log: LogView) -> ManifestEntry:
    """A table's part of a manifest below a position; a segment may end after it."""
    return replace(
        cut,
        segments=tuple(segment for segment in cut.segments if lsn.includes(log.commits(segment)[0])),
        truncations=tuple(truncation for truncation in cut.truncations if lsn.includes(truncation.commit_lsn)),
        refusals=tuple(refusal for refusal in cut.refusals if lsn.includes(refusal.commit_lsn)),
    )


def _take(gathered: _Gathered, cut: ManifestEntry, log: LogView, policy: Policy) -> None:
    """Add the table's part of a manifest, or nothing of it. Raises _Obstacle, Incompatible or Unclear."""
    for refusal in cut.refusals:
        raise _Obstacle(refused(refusal))
    schema, since, unnumbered = gathered.schema, gathered.since, gathered.unnumbered
    ends: Lsn | None = None
    taken: list[Segment] = []
    for segment in _in_order(cut.segments, log):
        own = log.schema(cut.oid, segment.schema)
        # New columns that the lake table has before its changes could be applied stay; a new key does not, because it
        # decides how these very changes are matched.
        followed = segment.schema <= gathered.followed
        following = keyed_as(schema, own) if followed else follow(schema, own, policy.keep_dropped)
        another_key = rekeyed(schema, following)
        if (another_key or unnumbered.contradict(following)) and (gathered.segments or taken):
            ends = _boundary(taken, segment, log, "key" if another_key else "columns")
            break
        if not followed:
            since = since if following == schema else log.commits(segment)[0]
        schema, unnumbered = following, unnumbered.following(own, following)
        gathered.written[segment.schema] = numbered(own, following)
        taken.append(segment)
    gathered.schema, gathered.since, gathered.ends, gathered.unnumbered = schema, since, ends, unnumbered
    gathered.segments += [(log.uri(segment), segment) for segment in taken]
    gathered.truncations += [t for t in cut.truncations if ends is None or ends.includes(t.commit_lsn)]
    gathered.bytes += sum(segment.bytes for segment in taken)
    gathered.leaves.update(leaf for segment in taken for leaf in segment.leaves)
    gathered.rows += sum(segment.rows for segment in taken)


def _in_order(segments: Sequence[Segment], log: LogView) -> Sequence[Segment]:
    """Segments by their first change. Partitions are described one by one, so versions alone don't give the order."""
    if len({segment.schema for segment in segments}) == 1:
        return segments
    return sorted(segments, key=log.begins)


def _boundary(before: Iterable[Segment], segment: Segment, log: LogView, changed: str) -> Lsn:
    """The commit from which rows have another key, or other columns. Raises Incompatible if rows of that commit have
    the old one."""
    first = log.commits(segment)[0]
    if any(log.commits(earlier)[1] >= first for earlier in before):
        raise Incompatible(f"its {changed} changed within a transaction that changed its rows, too")
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
        visibility=gathered.visibility,
    )
