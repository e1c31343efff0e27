"""The meaning of a chain of Java exceptions for a commit: not made, perhaps made, or neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.config import Config
from wal2lake.errors import CommitFailed, CommitUnknown, LakeError
from wal2lake.lake.format import FailureKind
from wal2lake.lake.iceberg.tables import IcebergTables
from wal2lake.lake.spark.java_errors import lake_failure

ICEBERG = "org.apache.iceberg.exceptions."


@pytest.fixture
def tables(tmp_path: Path) -> IcebergTables:
    return IcebergTables(Config(source={"dsn": "postgresql://nowhere"}, lake={"path": str(tmp_path)}))


@pytest.mark.parametrize(
    ("causes", "kind"),
    [
        (["org.apache.spark.SparkException", ICEBERG + "CommitFailedException"], FailureKind.COMMIT_FAILED),
        ([ICEBERG + "ValidationException"], FailureKind.COMMIT_FAILED),
        ([ICEBERG + "CommitStateUnknownException", "java.net.SocketException"], FailureKind.COMMIT_UNKNOWN),
        ([ICEBERG + "CommitStateUnknownException", ICEBERG + "CommitFailedException"], FailureKind.COMMIT_UNKNOWN),
        (["java.lang.RuntimeException", "org.sqlite.SQLiteException"], FailureKind.CATALOG),
        (["org.apache.spark.SparkException"], None),
        ([], None),
    ],
)
def test_a_failed_commit_is_distinguished_from_an_unknown_one(
    tables: IcebergTables, causes: list[str], kind: FailureKind | None
) -> None:
    assert tables.failure_kind(causes) is kind


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FailureKind.COMMIT_FAILED, CommitFailed),
        (FailureKind.COMMIT_UNKNOWN, CommitUnknown),
        (FailureKind.CATALOG, LakeError),
        (None, LakeError),
    ],
)
def test_each_kind_has_an_error_of_its_own(kind: FailureKind | None, expected: type[LakeError]) -> None:
    failure = lake_failure(RuntimeError(), "public.t", "applying changes to", "/lake", lambda _: kind)
    assert type(failure) is expected
