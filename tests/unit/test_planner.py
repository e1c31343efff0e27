from pathlib import Path

from wal2lake.changelog.manifest import Manifest, Refusal, Segment, TableCut, Truncation
from wal2lake.control.planner import LogView, Plan, difference, plan
from wal2lake.errors import SchemaChanged, ValueRefused
from wal2lake.lake.model import Applied
from wal2lake.pgtypes import LakeType
from wal2lake.position import Lsn
from wal2lake.schema import Column, Identity, TableId, TableSchema

INT = LakeType.parse("int")
OLD = TableSchema(7, TableId("public", "t"), (Column("id", 23, -1, "integer", INT),), ("id",), Identity.DEFAULT)
NEW = TableSchema(
    7, TableId("public", "t"), (*OLD.columns, Column("n", 23, -1, "integer", INT)), ("id",), Identity.DEFAULT
)
SCHEMAS = {1: OLD, 2: NEW}


def segment(name: str, schema: int = 1, size: int = 10) -> Segment:
    return Segment(name, 1, size, schema, 1, 0, 0, 0, 0)


def manifest(number: int, *segments: Segment, **cut: object) -> Manifest:
    tables = {7: TableCut(7, "public.t", segments, **cut)} if segments or cut else {}  # type: ignore[arg-type]
    return Manifest(number, Lsn(number * 100), Lsn(number * 100 + 100), 1, None, tables)


def planned(
    applied_lsn: int, applied_manifest: int, *manifests: Manifest, limit: int = 1000, newest: Manifest | None = None
) -> Plan:
    last_commits = {"before": Lsn(150), "after": Lsn(450)}
    view = LogView(lambda _, version: SCHEMAS[version], lambda s: Path(s.file), lambda s: last_commits[s.file])
    return plan(Applied(Lsn(applied_lsn), applied_manifest, 0, 0, OLD), manifests, view, limit, newest)


def files(result: Plan) -> list[str]:
    assert result.batch is not None
    return [str(path) for path, _ in result.batch.segments]


def test_a_batch_holds_whole_manifests_that_are_not_applied() -> None:
    result = planned(
        200, 1, manifest(1, segment("a")), manifest(2, segment("b")), manifest(3), manifest(4, segment("c"))
    )
    assert files(result) == ["b", "c"]
    assert result.batch is not None
    assert (result.batch.to_lsn, result.batch.to_manifest, result.batch.skip_before) == (Lsn(500), 4, None)


def test_nothing_new_gives_no_batch() -> None:
    assert planned(200, 1, manifest(1, segment("a"))) == Plan(None, None)


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


def test_a_refusal_that_the_copy_is_past_is_no_obstacle() -> None:
    refusal = Refusal(Lsn(210), 1, "ValueRefused", {"table": "public.t"})
    result = planned(211, 1, manifest(2, segment("b"), refusals=(refusal,)))
    assert (files(result), result.obstacle) == (["b"], None)


def test_a_changed_schema_stops_in_front_of_its_manifest() -> None:
    result = planned(100, 0, manifest(1, segment("a")), manifest(4, segment("after", schema=2)))
    assert files(result) == ["a"]
    assert isinstance(result.obstacle, SchemaChanged)
    assert "column n was added" in str(result.obstacle)


def test_a_segment_of_an_older_schema_that_the_copy_is_past_is_left_out() -> None:
    result = planned(200, 0, manifest(1, segment("before", schema=2), segment("a")))
    assert (files(result), result.obstacle) == (["a"], None)


def test_a_truncation_that_the_copy_is_past_is_left_out() -> None:
    result = planned(250, 1, manifest(2, truncations=(Truncation(Lsn(249), 0), Truncation(Lsn(250), 0))))
    assert result.batch is not None
    assert [t.commit_lsn for t in result.batch.truncations] == [Lsn(250)]


def test_a_difference_names_columns_and_key() -> None:
    assert difference(NEW, OLD) == "column n is gone"
    keyless = TableSchema(7, OLD.id, OLD.columns, (), Identity.FULL)
    assert difference(OLD, keyless) == "the key became (none), was (id)"
