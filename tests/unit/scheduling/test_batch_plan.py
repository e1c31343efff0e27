from dataclasses import replace

from wal2lake.change import Refusal, Truncation
from wal2lake.changelog.manifest import Manifest, ManifestEntry, Segment
from wal2lake.errors import CopyNeeded, SchemaChanged, ValueRefused
from wal2lake.lake.model import Applied
from wal2lake.position import Lsn
from wal2lake.reconcile.change_policy import Policy
from wal2lake.scheduling.batch_plan import BatchPlan, Limit, LogView, Until, plan_batch
from wal2lake.schema import Column, HeapFile, Membership, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType
from wal2lake.visibility import Visibility

INT = LakeType.parse("int")
STRING = LakeType.parse("string")
ID, N = Column("id", 23, -1, "integer", INT, attnum=1), Column("n", 23, -1, "integer", INT, attnum=2)
OLD = TableSchema(7, TableId("public", "t"), (ID,), ("id",), ReplicaIdentity.DEFAULT)
NEW = replace(OLD, columns=(ID, N))
REKEYED = replace(NEW, key=("n",))
WHOLE = replace(OLD, key=(), identity=ReplicaIdentity.FULL)
RETYPED = replace(NEW, columns=(ID, replace(N, type_oid=25, lake=STRING)))
PARTED = replace(OLD, partitioned=True, key_index=70)
REMADE = replace(PARTED, key_index=71)
UNNUMBERED = replace(NEW, columns=(replace(ID, attnum=0), replace(N, attnum=0)))
SWAPPED = replace(NEW, columns=(replace(ID, name="n"), replace(N, name="id")), key=("n",))
SCHEMAS = {1: OLD, 2: NEW, 3: REKEYED, 4: RETYPED, 5: OLD, 6: WHOLE, 7: PARTED, 8: REMADE, 9: UNNUMBERED, 10: SWAPPED}


def segment(name: str, schema: int = 1, size: int = 10) -> Segment:
    return Segment(name, 1, size, schema, 1, 0, 0, 0, 0)


def manifest(number: int, *segments: Segment, **cut: object) -> Manifest:
    tables = {7: ManifestEntry(7, "public.t", segments, **cut)} if segments or cut else {}  # type: ignore[arg-type]
    return Manifest(number, Lsn(number * 100), Lsn(number * 100 + 100), 1, None, tables)


def planned(
    applied_lsn: int,
    applied_manifest: int,
    *manifests: Manifest,
    limit: int = 1000,
    segments: int = 1000,
    rows: int = 1000,
    newest: Manifest | None = None,
    schema: TableSchema = OLD,
    stop: bool = False,
    exchanged: Until | None = None,
    visibility: Visibility | None = None,
) -> BatchPlan:
    commits = {"before": (Lsn(110), Lsn(150)), "mixed": (Lsn(150), Lsn(170)), "after": (Lsn(450), Lsn(450))}
    transactions = {
        "copied": [(Lsn(310), 751), (Lsn(320), 753)],
        "running": [(Lsn(330), 752)],
        "both": [(Lsn(340), 753), (Lsn(350), 754)],
    }
    view = LogView(
        lambda _, version: SCHEMAS[version],
        lambda s: s.file,
        lambda s: commits.get(s.file, (Lsn(160), Lsn(999))),
        lambda s: (commits.get(s.file, (Lsn(160), Lsn(999)))[0], s.schema),
        lambda s: None,
        lambda s: transactions.get(s.file, [(Lsn(999), 7000)]),
    )
    applied = Applied(Lsn(applied_lsn), applied_manifest, 0, 0, schema, visibility=visibility)
    return plan_batch(applied, manifests, view, Limit(limit, segments, rows), newest, Policy(stop=stop), exchanged)


def files(result: BatchPlan) -> list[str]:
    assert result.batch is not None
    return [uri for uri, _ in result.batch.segments]


def test_a_batch_holds_whole_manifests_that_are_not_applied() -> None:
    result = planned(
        200, 1, manifest(1, segment("a")), manifest(2, segment("b")), manifest(3), manifest(4, segment("c"))
    )
    assert files(result) == ["b", "c"]
    assert result.batch is not None
    assert (result.batch.to_lsn, result.batch.to_manifest, result.batch.skip_before) == (Lsn(500), 4, None)


def test_nothing_new_gives_no_batch() -> None:
    assert planned(200, 1, manifest(1, segment("a"))) == BatchPlan(None, None)


def test_a_manifest_that_begins_before_the_copy_is_read_from_the_copy_on() -> None:
    result = planned(250, 1, manifest(2, segment("b")))
    assert result.batch is not None
    assert result.batch.skip_before == Lsn(250)


def test_a_manifest_wholly_before_the_copy_does_not_move_the_position_back() -> None:
    result = planned(450, 1, manifest(2, segment("b")))
    assert result.batch is not None
    assert result.batch.to_lsn == Lsn(450)


def test_a_batch_ends_in_front_of_the_manifest_that_would_overfill_it() -> None:
    result = planned(
        100, 0, manifest(1, segment("a", size=600)), manifest(2, segment("b", size=400)), manifest(3, segment("c"))
    )
    assert files(result) == ["a", "b"]
    assert result.batch is not None
    assert result.batch.to_manifest == 2


def test_a_transaction_larger_than_a_batch_is_one_batch() -> None:
    large = manifest(2, segment("b", size=700), segment("c", size=700))
    assert files(planned(100, 0, manifest(1, segment("a")), large)) == ["a"]
    assert files(planned(200, 1, large, manifest(3, segment("d")))) == ["b", "c"]


def test_a_batch_that_takes_all_ends_at_the_newest_manifest() -> None:
    result = planned(100, 0, manifest(1, segment("a")), newest=manifest(9))
    assert result.batch is not None
    assert (result.batch.to_lsn, result.batch.to_manifest) == (Lsn(1000), 9)


def test_a_batch_that_leaves_something_ends_in_front_of_it() -> None:
    refusal = Refusal(Lsn(350), 1, "ValueRefused", {"table": "public.t"})
    for rest in (manifest(3, segment("b", size=1000)), manifest(3, refusals=(refusal,))):
        result = planned(100, 0, manifest(1, segment("a")), rest, newest=manifest(9))
        assert result.batch is not None
        assert result.batch.to_manifest == 1


def test_a_refusal_stops_in_front_of_its_manifest() -> None:
    refusal = Refusal(Lsn(250), 1, "ValueRefused", {"table": "public.t", "column": "n"})
    result = planned(100, 0, manifest(1, segment("a")), manifest(2, segment("b"), refusals=(refusal,)), manifest(3))
    assert files(result) == ["a"]
    assert isinstance(result.obstacle, ValueRefused)


SEEN = Visibility.of("750:754:752", Lsn(390))


def test_a_segment_that_the_copy_holds_is_left_out_and_others_are_filtered() -> None:
    log = (manifest(3, segment("copied"), segment("running"), segment("both")), manifest(4, segment("after")))
    result = planned(300, 0, *log, visibility=SEEN)
    assert files(result) == ["running", "both", "after"]
    assert result.batch is not None
    assert (result.batch.visibility, result.batch.skip_before) == (SEEN, None)


def test_after_the_last_transaction_that_the_copy_may_hold_nothing_is_filtered() -> None:
    result = planned(300, 3, manifest(4, segment("copied")), visibility=SEEN)
    assert files(result) == ["copied"]
    assert result.batch is not None and result.batch.visibility is None


def test_truncations_and_refusals_that_the_copy_holds_are_left_out() -> None:
    truncations = tuple(Truncation(Lsn(310), seq, xid=xid) for seq, xid in enumerate((751, 752)))
    refusals = tuple(Refusal(Lsn(320), 1, "ValueRefused", {"table": "t"}, xid) for xid in (751, 754))
    result = planned(300, 0, manifest(3, truncations=truncations), visibility=SEEN)
    assert result.batch is not None and result.batch.truncations == truncations[1:]
    assert planned(300, 0, manifest(3, refusals=refusals[:1]), visibility=SEEN).obstacle is None
    assert isinstance(planned(300, 0, manifest(3, refusals=refusals), visibility=SEEN).obstacle, ValueRefused)


def test_a_position_beyond_what_the_snapshot_may_see_forgets_the_snapshot() -> None:
    copied = Applied(Lsn(300), 0, 0, 0, OLD, visibility=SEEN)
    assert copied.at(Lsn(389), 1).visibility == SEEN
    assert copied.at(Lsn(390), 1).visibility is None


def test_a_refusal_that_the_copy_is_past_is_no_obstacle() -> None:
    refusal = Refusal(Lsn(210), 1, "ValueRefused", {"table": "public.t"})
    result = planned(211, 1, manifest(2, segment("b"), refusals=(refusal,)))
    assert (files(result), result.obstacle) == (["b"], None)


def test_a_batch_spans_schemas_and_ends_in_the_last() -> None:
    result = planned(100, 0, manifest(1, segment("a")), manifest(4, segment("after", schema=2)))
    assert (files(result), result.obstacle) == (["a", "after"], None)
    assert result.batch is not None and result.batch.schema is not None
    assert result.batch.schema.names == ("id", "n")
    assert (result.batch.written, result.batch.since) == ({1: OLD, 2: NEW}, Lsn(450))


def test_columns_that_come_and_go_within_a_batch_are_no_change() -> None:
    result = planned(100, 0, manifest(1, segment("a", 1), segment("b", 2), segment("c", 5)))
    assert files(result) == ["a", "b", "c"]
    assert result.batch is not None
    assert result.batch.schema is None


def test_columns_that_the_table_has_got_already_are_not_taken_back() -> None:
    result = planned(
        100,
        0,
        manifest(1, segment("a"), segment("b", schema=2)),
        schema=replace(RETYPED, columns=NEW.columns, version=2),
    )
    assert (files(result), result.obstacle) == (["a", "b"], None)
    assert result.batch is not None
    assert result.batch.schema is None


def test_a_change_that_the_lake_cannot_follow_asks_for_a_copy_or_stops() -> None:
    manifests = manifest(1, segment("a", 2)), manifest(4, segment("after", schema=4))
    result = planned(100, 0, *manifests, schema=NEW)
    assert result.batch is None
    assert isinstance(result.obstacle, CopyNeeded)
    result = planned(100, 0, *manifests, schema=NEW, stop=True)
    assert files(result) == ["a"]
    assert isinstance(result.obstacle, SchemaChanged)
    assert "column n became" in str(result.obstacle)


def test_another_key_ends_the_batch_within_the_manifest() -> None:
    changes = manifest(1, segment("before", 2), segment("later", 3), truncations=(Truncation(Lsn(120), 0),))
    result = planned(100, 0, changes, schema=NEW)
    assert files(result) == ["before"]
    assert result.batch is not None
    assert (result.batch.to_lsn, result.batch.to_manifest, result.batch.schema) == (Lsn(160), 0, None)
    rest = planned(160, 0, changes, schema=NEW)
    assert files(rest) == ["later"]
    assert rest.batch is not None and rest.batch.schema is not None
    assert (rest.batch.schema.key, rest.batch.skip_before, rest.batch.to_manifest) == (("n",), Lsn(160), 1)


def test_another_key_within_a_transaction_that_has_rows_of_both_needs_a_copy() -> None:
    result = planned(100, 0, manifest(1, segment("mixed", 2), segment("later", 3)), schema=NEW)
    assert isinstance(result.obstacle, CopyNeeded)


def test_a_swap_of_columns_ends_the_batch_if_changes_before_it_have_no_numbers() -> None:
    # Columns and changes are two commits: after a crash between them, the names would mean other columns.
    changes = manifest(1, segment("before", 9), segment("later", 10))
    for version in (8, 9):
        result = planned(100, 0, changes, schema=replace(NEW, version=version))
        assert files(result) == ["before"]
        assert result.batch is not None
        assert (result.batch.to_lsn, result.batch.written) == (Lsn(160), {9: NEW})
    rest = planned(160, 0, changes, schema=replace(NEW, version=9))
    assert files(rest) == ["later"]
    assert rest.batch is not None and rest.batch.schema is not None
    assert rest.batch.schema.names == ("n", "id")


def test_a_swap_of_columns_within_a_transaction_whose_rows_have_no_numbers_needs_a_copy() -> None:
    result = planned(100, 0, manifest(1, segment("mixed", 9), segment("later", 10)), schema=NEW)
    assert isinstance(result.obstacle, CopyNeeded)


def test_a_swap_of_columns_is_followed_within_a_batch_if_changes_before_it_have_numbers() -> None:
    result = planned(100, 0, manifest(1, segment("mixed", 2), segment("later", 10)), schema=NEW)
    assert (files(result), result.obstacle) == (["mixed", "later"], None)


def test_a_segment_of_an_older_schema_that_the_copy_is_past_is_left_out() -> None:
    result = planned(200, 0, manifest(1, segment("before", schema=2), segment("a")))
    assert (files(result), result.obstacle) == (["a"], None)


def test_a_truncation_that_the_copy_is_past_is_left_out() -> None:
    result = planned(250, 1, manifest(2, truncations=(Truncation(Lsn(249), 0), Truncation(Lsn(250), 0))))
    assert result.batch is not None
    assert [t.commit_lsn for t in result.batch.truncations] == [Lsn(250)]


def test_rows_that_were_sent_whole_are_matched_whole_though_the_catalog_has_shown_a_key_since() -> None:
    # The lake table was given the key by a look at the catalog; its columns had followed this version before.
    result = planned(200, 1, manifest(2, segment("after", 6)), schema=replace(OLD, version=6))
    assert result.batch is not None
    assert result.batch.schema is not None
    assert (result.batch.schema.key, result.batch.schema.identity) == ((), ReplicaIdentity.FULL)


def test_rows_with_a_key_after_rows_without_one_begin_a_batch() -> None:
    result = planned(100, 1, manifest(2, segment("before", 6), segment("mixed", 5)), schema=replace(WHOLE, version=4))
    assert isinstance(result.obstacle, CopyNeeded)  # both in one commit
    result = planned(100, 1, manifest(2, segment("before", 6), segment("after", 5)), schema=replace(WHOLE, version=4))
    assert files(result) == ["before"]
    assert result.batch is not None
    assert (result.batch.to_lsn, result.obstacle) == (Lsn(450), None)


def test_another_key_over_the_same_columns_of_a_partitioned_table_needs_a_copy() -> None:
    result = planned(200, 1, manifest(2, segment("after", 7)), schema=PARTED)
    assert files(result) == ["after"]
    result = planned(200, 1, manifest(2, segment("after", 8)), schema=PARTED)
    assert isinstance(result.obstacle, CopyNeeded)
    assert result.batch is None


def test_a_batch_ends_in_front_of_the_manifest_that_would_make_it_too_many_segments_or_rows() -> None:
    waiting = [manifest(number, segment(f"{number}a"), segment(f"{number}b")) for number in range(1, 6)]
    assert files(planned(100, 0, *waiting, segments=5)) == ["1a", "1b", "2a", "2b"]
    assert files(planned(100, 0, *waiting, segments=1)) == ["1a", "1b"], "a manifest is never split"
    assert files(planned(100, 0, *waiting, rows=7)) == ["1a", "1b", "2a", "2b", "3a", "3b"]


AT_160 = Until(Lsn(160), frozenset({11}))


def test_a_batch_before_an_exchange_ends_within_a_manifest() -> None:
    made = (Membership(12, 700, made=True),)
    gone = (
        Truncation(Lsn(155), 0, 11, "bounds"),
        Truncation(Lsn(156), 0, 12, "bounds", levels=made),
        Truncation(Lsn(170), 0, 12, "bounds", levels=made),
    )
    cut = manifest(1, segment("before", 7), segment("mixed", 7), segment("later", 7), truncations=gone)
    result = planned(100, 0, cut, schema=PARTED, exchanged=AT_160)
    assert files(result) == ["before", "mixed"]
    batch = result.batch
    assert batch is not None
    assert (batch.to_lsn, batch.to_manifest, batch.end_before, batch.left_out) == (
        Lsn(160),
        0,
        Lsn(160),
        AT_160.left_out,
    )
    assert batch.truncations == gone[1:2]


def test_a_batch_before_an_exchange_does_not_end_there_if_it_is_full_before() -> None:
    first = Until(Lsn(250))
    result = planned(100, 0, manifest(1, segment("a", size=900)), manifest(2, segment("b", size=900)), exchanged=first)
    assert files(result) == ["a"]
    assert result.batch is not None
    assert (result.batch.to_lsn, result.batch.to_manifest) == (Lsn(200), 1)


def test_partitions_in_the_log_are_stored_before_their_changes_are_applied() -> None:
    told = replace(segment("a", 7), leaves=(11,))
    result = planned(100, 0, manifest(1, told), schema=PARTED)
    assert result.batch is not None and result.batch.schema is not None
    assert [heap.oid for heap in result.batch.schema.heaps] == [11]
    known = planned(100, 0, manifest(1, told), schema=result.batch.schema)
    assert known.batch is not None and known.batch.schema is None


def member(oid: int, since: int, file: int = 1) -> HeapFile:
    return HeapFile(oid, file, (Membership(oid, since),))


def of_partition(number: int, leaf: int, **attached: tuple[Membership, ...]) -> Manifest:
    part = replace(segment("a.parquet", schema=7), leaves=(leaf,))
    return manifest(number, part, attached={int(oid[1:]): levels for oid, levels in attached.items()})


def test_changes_that_may_be_older_than_the_attach_of_their_partition_wait_for_its_exchange() -> None:
    lake = replace(PARTED, heaps=(member(11, 750), HeapFile(12, 0)))
    known, again = (Membership(11, 750),), (Membership(11, 760),)
    attached = (Membership(13, 760),)

    def stops(manifest: Manifest, exchanged: Until | None = None) -> bool:
        plan = planned(100, 0, manifest, schema=lake, exchanged=exchanged)
        assert plan.obstacle is None
        return bool(plan.attached)

    assert not stops(of_partition(1, 11)), "it was never published by itself"
    assert not stops(of_partition(1, 11, _11=known)), "the lake table has it since then"
    assert stops(of_partition(1, 11, _11=again)), "it was attached again"
    assert stops(of_partition(1, 11, _11=())), "it is no partition now"
    assert stops(of_partition(1, 12, _12=(Membership(12, 760),))), "the lake table has changes of it, not its rows"
    assert stops(of_partition(1, 13, _13=attached)), "the lake table does not know it"
    assert not stops(of_partition(1, 13, _11=again)), "it has no changes"
    assert not stops(of_partition(1, 13, _13=(Membership(13, 770, made=True),))), "it had no rows before"
    assert not stops(of_partition(1, 13, _13=attached), Until(Lsn(200), frozenset({13}))), "they are left out"
    emptied = manifest(1, truncations=(Truncation(Lsn(150), 0, 13),), attached={13: attached})
    assert stops(emptied), "a truncation is a change, too"


def test_changes_that_were_given_to_another_table_and_may_be_its_own_wait_for_the_exchange_of_their_partition() -> None:
    lake = replace(PARTED, heaps=(member(11, 750), HeapFile(12, 0)))

    def stops(*doubted: int, exchanged: Until | None = None) -> frozenset[int]:
        entry = ManifestEntry(PARTED.oid, "parted", doubted=doubted)
        told = replace(manifest(1), tables={PARTED.oid: entry})
        return planned(100, 0, told, schema=lake, exchanged=exchanged).attached

    assert stops(11, 12) == {11, 12}
    assert not stops(13), "the lake table has no rows of it"
    assert not stops(11, exchanged=Until(Lsn(200), frozenset({11}))), "they are left out"


def test_a_truncation_whose_bounds_are_of_a_later_membership_waits_for_the_exchange_of_its_partition() -> None:
    lake = replace(PARTED, heaps=(member(11, 750),))

    def stops(leaf: int, *levels: Membership, exchanged: Until | None = None) -> bool:
        emptied = manifest(1, truncations=(Truncation(Lsn(150), 0, leaf, "bounds", levels=levels),))
        return bool(planned(100, 0, emptied, schema=lake, exchanged=exchanged).attached)

    assert not stops(11, Membership(11, 750)), "the lake table has it since then"
    assert stops(11, Membership(11, 760)), "it was attached again, perhaps with other bounds"
    assert stops(11), "it is not known of which membership they are"
    assert not stops(13, Membership(13, 770, made=True)), "it has never been another one"
    assert stops(13, Membership(13, 770)), "it may have been"
    assert not stops(11, Membership(11, 760), exchanged=Until(Lsn(200), frozenset({11}))), "it is left out"


def test_what_comes_before_such_changes_is_applied_first() -> None:
    lake = replace(PARTED, heaps=(member(11, 750),))
    plan = planned(100, 0, of_partition(1, 11), of_partition(2, 13, _13=(Membership(13, 760),)), schema=lake)
    assert plan.attached and plan.batch is not None
    assert (plan.batch.to_manifest, plan.batch.to_lsn) == (1, Lsn(200))


def test_a_manifest_remembers_memberships() -> None:
    written = of_partition(1, 13, _13=(Membership(13, 760), Membership(6, 700, made=True)))
    read = Manifest.from_json(written.to_json()).tables[7]
    assert read.attached == written.tables[7].attached and [level.made for level in read.attached[13]] == [False, True]
    assert "attached" not in of_partition(1, 13).to_json()
    emptied = Truncation(Lsn(150), 0, 13, "bounds", 9, (("id", 1),), (Membership(13, 760, made=True),))
    read = Manifest.from_json(manifest(1, truncations=(emptied,)).to_json()).tables[7]
    assert read.truncations == (emptied,) and read.truncations[0].levels[0].made
