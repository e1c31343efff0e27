"""Case by case: the effect of a change of columns on the lake table."""

from dataclasses import replace

import pytest

from wal2lake.evolution import (
    ColumnChanges,
    Incompatible,
    Unclear,
    Unnumbered,
    changes,
    doubted,
    facts_differ,
    follow,
    moved,
    numbered,
    rekeyed,
    require_fillable,
    source_of,
    texts_differ,
    with_facts,
    with_heaps,
    with_leaves,
)
from wal2lake.schema import Column, HeapFile, Membership, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType, Masking


def column(name: str, number: int, oid: int = 23, lake: str = "int", typmod: int = -1, **more: object) -> Column:
    return Column(name, oid, typmod, f"type {oid}", LakeType.parse(lake), attnum=number, **more)  # type: ignore[arg-type]


def table(*columns: Column, key: tuple[str, ...] = ("id",), **more: object) -> TableSchema:
    heaps = (HeapFile(7, 100),)
    return TableSchema(7, TableId("public", "t"), columns, key, ReplicaIdentity.DEFAULT, heaps=heaps, **more)  # type: ignore[arg-type]


ID = column("id", 1)
N = column("n", 2)
LAKE = table(ID, N)


def test_a_column_that_comes_is_added_with_its_default() -> None:
    target = follow(LAKE, table(ID, N, column("x", 3, missing="5")))
    assert target.names == ("id", "n", "x")
    found = changes(LAKE, target)
    assert ([c.name for c in found.added], found.of_rows) == (["x"], True)
    require_fillable(LAKE, target)


def test_a_column_without_default_touches_no_row() -> None:
    assert not changes(LAKE, follow(LAKE, table(ID, N, column("x", 3)))).of_rows


def test_a_column_that_goes_is_dropped_or_kept() -> None:
    assert follow(LAKE, table(ID)).names == ("id",)
    kept = follow(LAKE, table(ID), keep_dropped=True)
    assert [(c.name, c.kept) for c in kept.columns] == [("id", False), ("n", True)]
    assert changes(LAKE, kept) == ColumnChanges()
    assert follow(kept, table(ID), keep_dropped=True) == kept


def test_a_column_that_is_kept_makes_room_for_one_of_its_name() -> None:
    kept = follow(LAKE, table(ID), keep_dropped=True)
    again = follow(kept, table(ID, column("n", 3)), keep_dropped=True)
    assert [(c.name, c.attnum) for c in again.columns] == [("id", 1), ("n", 3), ("n_dropped_2", 2)]


def test_a_column_in_the_place_of_one_of_its_name_needs_a_copy() -> None:
    """Rows that were written with the old one and are read late look like rows with the new one."""
    with pytest.raises(Incompatible, match="column n was dropped and added again"):
        follow(LAKE, table(ID, column("n", 3)))


def test_a_rename_is_distinguished_from_a_drop_and_an_add_by_the_number() -> None:
    found = changes(LAKE, follow(LAKE, table(ID, column("m", 2))))
    assert [(old.name, new.name) for old, new in found.renamed] == [("n", "m")]
    found = changes(LAKE, follow(LAKE, table(ID, column("m", 3))))
    assert ([c.name for c in found.added], [c.name for c in found.dropped]) == (["m"], ["n"])


def test_columns_that_change_places_are_two_renames() -> None:
    lake = table(ID, N, column("v", 3))
    found = changes(lake, follow(lake, table(ID, column("v", 2), column("n", 3))))
    assert [(old.name, new.name) for old, new in found.renamed] == [("n", "v"), ("v", "n")]


def test_without_numbers_a_drop_beside_an_add_is_a_question() -> None:
    with pytest.raises(Unclear, match="was column n renamed to m"):
        follow(LAKE, table(replace(ID, attnum=0), column("m", 0)))


def test_without_numbers_another_order_is_a_question() -> None:
    lake = table(ID, N, column("v", 3))
    with pytest.raises(Unclear, match="was another one renamed to it"):
        follow(lake, table(replace(ID, attnum=0), column("v", 0), column("n", 0)))


def test_without_numbers_names_that_are_all_known_mean_the_same_columns() -> None:
    unnumbered = table(replace(ID, attnum=0), replace(N, attnum=0))
    target = follow(LAKE, unnumbered)
    assert target == LAKE
    assert numbered(unnumbered, target).columns == LAKE.columns


def _unnumbered(*names: str, lake: TableSchema) -> Unnumbered:
    return Unnumbered().following(table(*(column(name, 0) for name in names)), lake)


def test_rows_without_numbers_are_contradicted_by_a_rename_and_by_a_name_that_is_used_again() -> None:
    rows, again = _unnumbered("id", "n", lake=LAKE), table(ID, column("n", 3))
    assert not rows.contradict(table(ID, N, column("v", 3)))
    assert rows.contradict(table(ID, column("m", 2)))
    assert rows.contradict(again)
    dropped = table(ID)
    assert not rows.contradict(dropped)
    assert rows.following(dropped, dropped).contradict(again)


def test_rows_with_numbers_are_contradicted_by_nothing() -> None:
    rows = Unnumbered().following(LAKE, LAKE)
    assert not rows.contradict(table(ID, column("m", 2)))


def test_a_column_that_is_numbered_later_is_the_same() -> None:
    assert not _unnumbered("id", "n", lake=table(ID, column("n", 0))).contradict(LAKE)


def test_a_column_that_the_lake_does_not_have_any_more_stays_without_a_number() -> None:
    assert [c.attnum for c in numbered(table(column("id", 0), column("gone", 0)), LAKE).columns] == [1, 0]


def test_a_table_from_before_numbers_were_kept_gets_them() -> None:
    old = table(replace(ID, attnum=0), replace(N, attnum=0))
    target = follow(old, LAKE)
    assert [c.attnum for c in target.columns] == [1, 2]
    assert changes(old, target) == ColumnChanges()


WIDER = {
    "int2 to int4": (column("n", 2, 21), column("n", 2, 23)),
    "int4 to int8": (column("n", 2, 23), column("n", 2, 20, "long")),
    "float4 to float8": (column("n", 2, 700, "float"), column("n", 2, 701, "double")),
    "more digits": (
        column("n", 2, 1700, "decimal(10,2)", (10 << 16 | 2) + 4),
        column("n", 2, 1700, "decimal(12,2)", (12 << 16 | 2) + 4),
    ),
    "varchar to text": (column("n", 2, 1043, "string", 24), column("n", 2, 25, "string")),
    "longer varchar": (column("n", 2, 1043, "string", 24), column("n", 2, 1043, "string", 44)),
    "varchar without limit": (column("n", 2, 1043, "string", 24), column("n", 2, 1043, "string")),
    "text to varchar": (column("n", 2, 25, "string"), column("n", 2, 1043, "string")),
    "timestamp of more digits": (column("n", 2, 1114, "timestamp", 3), column("n", 2, 1114, "timestamp")),
}
OTHER = {
    "int to text": (column("n", 2), column("n", 2, 25, "string")),
    "int8 to int4": (column("n", 2, 20, "long"), column("n", 2)),
    "float8 to float4": (column("n", 2, 701, "double"), column("n", 2, 700, "float")),
    "another scale": (
        column("n", 2, 1700, "decimal(10,2)", (10 << 16 | 2) + 4),
        column("n", 2, 1700, "decimal(12,4)", (12 << 16 | 4) + 4),
    ),
    "numeric without limits": (
        column("n", 2, 1700, "decimal(10,2)", (10 << 16 | 2) + 4),
        column("n", 2, 1700, "string"),
    ),
    "shorter varchar": (column("n", 2, 1043, "string", 44), column("n", 2, 1043, "string", 24)),
    "text to char": (column("n", 2, 25, "string"), column("n", 2, 1042, "string", 14)),
    "char to text": (column("n", 2, 1042, "string", 14), column("n", 2, 25, "string")),
    "text to jsonb": (column("n", 2, 25, "string"), column("n", 2, 3802, "string")),
    "fewer digits of seconds": (column("n", 2, 1114, "timestamp"), column("n", 2, 1114, "timestamp", 3)),
    "int[] to bigint[]": (column("n", 2, 1007, "list<int>"), column("n", 2, 1016, "list<long>")),
    "float4 as text to float8": (column("n", 2, 700, "string"), column("n", 2, 701, "string")),
}


@pytest.mark.parametrize("case", WIDER)
def test_a_wider_type_is_followed(case: str) -> None:
    before, after = WIDER[case]
    target = follow(table(ID, before), table(ID, after))
    assert target.column("n").lake == after.lake
    assert bool(changes(table(ID, before), target).widened) == (before.lake != after.lake)


@pytest.mark.parametrize("case", OTHER)
def test_a_type_that_changes_values_needs_a_copy(case: str) -> None:
    before, after = OTHER[case]
    with pytest.raises(Incompatible, match="column n became"):
        follow(table(ID, before), table(ID, after))


def test_rewritten_rows_have_values_that_no_default_has() -> None:
    rewritten = replace(table(ID, N, column("x", 3)), heaps=(HeapFile(7, 101),))
    with pytest.raises(Incompatible, match="column x was added with a different value in each row"):
        require_fillable(LAKE, follow(LAKE, rewritten))
    later = replace(rewritten, heaps_later=True)
    assert follow(LAKE, later).heaps == LAKE.heaps
    with pytest.raises(Incompatible, match="column x was added with a different value in each row"):
        require_fillable(LAKE, follow(LAKE, later))
    generated = table(ID, N, column("x", 3, missing_known=False))
    with pytest.raises(Incompatible, match="column x"):
        require_fillable(LAKE, follow(LAKE, generated))


@pytest.mark.parametrize(
    ("lake", "text", "written"),
    [("date", "2024-01-31", True), ("date", "infinity", False), ("timestamptz", "2024-01-31 10:00:00+00", True),
     ("decimal(10,2)", "1.50", True), ("decimal(10,2)", "NaN", False), ("double", "NaN", True), ("binary", r"\x4142", True),
     ("list<string>", "{}", True), ("list<string>", "{a}", False), ("string", "{a}'", True), ("boolean", "t", True)],
)  # fmt: skip
def test_a_default_that_can_be_written_down_needs_no_copy(lake: str, text: str, written: bool) -> None:
    target = follow(LAKE, table(ID, N, column("x", 3, 9999, lake, missing=text)))
    if written:
        require_fillable(LAKE, target)
    else:
        with pytest.raises(Incompatible, match="column x was added with a default"):
            require_fillable(LAKE, target)


def test_another_key_is_noticed_and_a_renamed_one_is_the_same() -> None:
    assert rekeyed(LAKE, follow(LAKE, table(ID, N, key=("n",))))
    assert not rekeyed(LAKE, follow(LAKE, table(column("ident", 1), N, key=("ident",))))


def test_the_lake_tables_own_name_stays() -> None:
    assert follow(LAKE, replace(LAKE, id=TableId("other", "name"))) == LAKE


def test_an_older_schema_gives_a_column_its_values_by_number() -> None:
    swapped = table(ID, column("v", 2), column("n", 3))
    assert source_of(column("n", 2), swapped) == column("v", 2)
    assert source_of(column("x", 9), swapped) is None


def leaf(oid: int, *levels: Membership, file: int = 1, empty: bool = False) -> HeapFile:
    return HeapFile(oid, file, levels or (Membership(oid, 100),), empty)


MIDDLE = Membership(5, 90)
PARTED = replace(LAKE, partitioned=True, heaps=(leaf(8), leaf(9), leaf(10, Membership(10, 100), MIDDLE)))
CAME = {
    "created as a partition": (leaf(11, Membership(11, 200, made=True)), True),
    "attached without rows": (leaf(11, Membership(11, 200), empty=True), True),
    "attached with rows": (leaf(11, Membership(11, 200)), False),
    "created below a level that is known": (leaf(11, Membership(11, 200, made=True), MIDDLE), True),
    "attached below a level that is known": (leaf(11, Membership(11, 200), MIDDLE), False),
    "created below a level that was attached": (leaf(11, Membership(11, 200, made=True), Membership(6, 201)), False),
    "created with its level": (leaf(11, Membership(11, 200, made=True), Membership(6, 199, made=True)), True),
}


@pytest.mark.parametrize("case", CAME)
def test_a_partition_that_came_is_known_if_it_had_no_rows(case: str) -> None:
    came, known = CAME[case]
    found = moved(PARTED, replace(PARTED, heaps=(*PARTED.heaps, came)))
    assert (found is None) == known
    if found is not None:
        assert (found.unknown, found.gone) == ((came,), ())
        assert "attached with rows" in str(found)


AGAIN = {
    "attached again": leaf(8, Membership(8, 200)),
    "created as a partition by that name": leaf(8, Membership(8, 200, made=True)),
    "attached again without rows": leaf(8, Membership(8, 200), empty=True),
    "rewritten": leaf(8, file=2),
    "moved to another level": leaf(8, Membership(8, 200), MIDDLE),
}


@pytest.mark.parametrize("case", AGAIN)
def test_a_partition_that_was_detached_or_rewritten_has_unknown_rows(case: str) -> None:
    found = moved(PARTED, replace(PARTED, heaps=(AGAIN[case], *PARTED.heaps[1:])))
    assert found is not None and (found.unknown, found.gone) == ((AGAIN[case],), ())


def test_a_level_that_was_attached_again_makes_its_partitions_unknown() -> None:
    again = leaf(10, Membership(10, 100), Membership(5, 200))
    found = moved(PARTED, replace(PARTED, heaps=(*PARTED.heaps[:2], again)))
    assert found is not None and found.unknown == (again,)


def test_a_partition_that_went_is_gone_also_if_another_came() -> None:
    came = leaf(11, Membership(11, 200, made=True))
    found = moved(PARTED, replace(PARTED, heaps=(*PARTED.heaps[1:], came)))
    assert found is not None and (found.unknown, found.gone) == ((), (leaf(8),))
    assert str(found) == "a partition was dropped or detached"


def test_partitions_of_a_table_that_had_none_are_judged_too() -> None:
    lake = replace(PARTED, heaps=())
    assert moved(lake, PARTED) is not None
    assert moved(PARTED, PARTED) is None
    assert moved(LAKE, replace(LAKE, heaps=(HeapFile(7, 101),))) is None


def test_a_partition_in_the_log_is_judged_by_the_next_reading_of_the_catalog() -> None:
    told = with_leaves(PARTED, [8, 11])
    assert told.heaps == (*PARTED.heaps, HeapFile(11, 0))
    made, attached = leaf(11, Membership(11, 200, made=True)), leaf(11, Membership(11, 200))
    assert moved(told, replace(PARTED, heaps=(*PARTED.heaps, made))) is None
    found = moved(told, replace(PARTED, heaps=(*PARTED.heaps, attached)))
    assert found is not None and found.unknown == (attached,)
    gone = moved(told, PARTED)
    assert gone is not None and gone.gone == (HeapFile(11, 0),)
    assert with_heaps(told, PARTED, later=told.heaps[-1:]).heaps == told.heaps
    assert with_leaves(LAKE, [11]) is LAKE


def test_a_partition_in_doubt_stays_unknown_whatever_a_look_finds() -> None:
    made = leaf(11, Membership(11, 200, made=True), empty=True)
    source = replace(PARTED, heaps=(*PARTED.heaps[1:], made))
    for lake in (PARTED, with_leaves(PARTED, [11])):
        unknown = doubted(lake, source, {8, 11})
        found = moved(unknown, replace(source, heaps=(*PARTED.heaps, made)))
        assert found is not None and {heap.oid for heap in found.unknown} == {8, 11}
        gone = moved(unknown, source)
        assert gone is not None and [heap.oid for heap in gone.gone] == [8]
        assert moved(TableSchema.from_json(unknown.to_json()), source) == gone


def test_columns_that_follow_the_log_leave_the_partitions_to_the_next_look() -> None:
    rewritten = replace(PARTED, heaps=tuple(replace(heap, file=2) for heap in PARTED.heaps))
    assert follow(PARTED, rewritten).heaps == PARTED.heaps
    assert moved(follow(PARTED, rewritten), rewritten) is not None


def test_a_schema_survives_being_written() -> None:
    schema = table(ID, column("x", 3, missing="5", kept=True), version=4)
    again = TableSchema.from_json(schema.to_json())
    assert (again, again.heaps, again.version) == (schema, schema.heaps, 4)
    assert TableSchema.from_json(PARTED.to_json()).heaps == PARTED.heaps
    assert TableSchema.from_json({**LAKE.to_json(), "heaps": [[7, 100, True]]}).heaps == LAKE.heaps


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (table(ID, replace(N, mask=Masking.NULL)), "the mask of column n"),
        (table(ID, N, where="id > 3"), "row filter"),
        (table(ID, N, only=(1, 2)), "column list"),
        (table(ID, N, entry=9), "publication"),
    ],
)
def test_what_was_left_out_or_masked_otherwise_has_to_be_copied(source: TableSchema, why: str) -> None:
    for before, after in ((LAKE, source), (source, LAKE)):
        with pytest.raises(Incompatible, match=why):
            follow(before, after)
    assert follow(source, source) == source


def test_a_table_that_lost_its_masks_with_its_name_is_a_question() -> None:
    masked = table(ID, replace(N, mask=Masking.SHA256))
    renamed = replace(masked, id=TableId("public", "renamed"))
    with pytest.raises(Unclear, match="masks"):
        follow(masked, replace(LAKE, id=renamed.id))
    assert follow(masked, renamed).id == masked.id


def test_a_hash_stays_what_it_is_when_the_type_gets_wider() -> None:
    hashed = replace(N, mask=Masking.SHA256, lake=LakeType.parse("string"))
    wider = replace(hashed, type_oid=20)
    assert follow(table(ID, hashed), table(ID, wider)).column("n").type_oid == 20
    with pytest.raises(Incompatible):
        follow(table(ID, replace(hashed, type_oid=700)), table(ID, replace(hashed, type_oid=701)))


def enum(relies: tuple[str, ...] | None, name: str = "e", number: int = 1, unaltered: bool = False) -> Column:
    return column(name, number, 20_000, "string", relies=relies, unaltered=unaltered)


def enums(*columns: Column) -> TableSchema:
    return table(*columns, key=())


def test_a_label_more_changes_no_text_that_is_there() -> None:
    lake, source = enums(enum(("a", "b"))), enums(enum(("a", "b", "c")))
    assert texts_differ(lake, source) is None and not facts_differ(lake, source)


def test_a_fact_that_does_not_hold_any_more_changes_texts() -> None:
    lake, source = enums(enum(("a", "b"))), enums(enum(("a", "x")))
    assert "altered" in (texts_differ(lake, source) or "") and facts_differ(lake, source)


def test_columns_from_the_log_keep_the_facts_of_the_lake_table_and_new_ones_have_none() -> None:
    lake = enums(enum(("a",)))
    followed = follow(lake, enums(enum(("x",)), enum(("y",), name="f", number=2)))
    assert [column.relies for column in followed.columns] == [("a",), None]


def test_unknown_facts_are_taken_from_a_type_that_was_never_altered_alone() -> None:
    lake = enums(enum(None))
    assert texts_differ(lake, enums(enum(("a",), unaltered=True))) is None
    assert facts_differ(lake, enums(enum(("a",), unaltered=True)))
    assert with_facts(lake, enums(enum(("a",)))).columns[0].relies == ("a",)
    assert "at an unknown time" in (texts_differ(lake, enums(enum(("a",)))) or "")
