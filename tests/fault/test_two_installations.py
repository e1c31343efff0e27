"""Two mirrors on one database: the second is refused clearly, or has everything to itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirroring import Mirrored

from remedies import heals
from servers import Database, fresh_database
from wal2lake.errors import OtherInstallation, SlotLost
from wal2lake.mirror import Mirror
from wal2lake.preflight.collect import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MADE = (
    "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
    " UNION ALL SELECT pubname::text FROM pg_publication ORDER BY 1"
)


@pytest.fixture
def first(database: Database, tmp_path: Path, spark: SparkSession) -> Mirrored:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE TABLE u (id int PRIMARY KEY)"
    )
    mirrored = Mirrored(database, tmp_path / "lake", spark)
    mirrored.catches_up("t", "u")
    return mirrored


def test_a_second_lake_with_the_same_state_store_is_refused_and_changes_nothing(
    first: Mirrored, tmp_path: Path
) -> None:
    made = first.database.rows(MADE)
    second = Mirrored(first.database, tmp_path / "other", first.spark, groups=[{"name": "mine"}])
    for use in (second.once, Mirror(second.config).status, Mirror(second.config).teardown):
        with pytest.raises(OtherInstallation) as raised:
            use()
        assert str(tmp_path / "lake") in str(raised.value)
        assert "[state] dsn" in raised.value.remedy
    (finding,) = [finding for finding in check(second.config) if finding.blocks]
    assert "another installation" in finding.consequence
    assert "groups drop" not in str(check(second.config))
    assert first.database.rows(MADE) == made
    first.database.execute("INSERT INTO t VALUES (2)")
    first.catches_up("t", "u")


@pytest.mark.slow
def test_a_second_lake_with_a_store_of_its_own_never_touches_what_the_first_has(
    first: Mirrored, tmp_path: Path
) -> None:
    made = first.database.rows(MADE)
    with fresh_database(first.database.server) as elsewhere:
        state = {"dsn": elsewhere.dsn}
        same_name = Mirrored(first.database, tmp_path / "other", first.spark, state=state)
        same_name.configure(groups=[{"name": "default", "tables": ["public.t"]}])
        with pytest.raises(SlotLost) as raised:
            same_name.once()
        assert "give the group default another name" in raised.value.remedy
        Mirror(same_name.config).teardown()
        assert first.database.rows(MADE) == made
        second = Mirrored(first.database, tmp_path / "other", first.spark, state=state, groups=[{"name": "mine"}])
        second.catches_up("t", "u")
        first.database.execute("INSERT INTO t VALUES (2); INSERT INTO u VALUES (1)")
        first.catches_up("t", "u")
        second.catches_up("t", "u")
        Mirror(second.config).teardown()
        assert first.database.rows(MADE) == made
        first.catches_up("t", "u")


@heals("OtherInstallation")
def test_what_was_made_for_a_lake_that_is_gone_can_be_dropped(first: Mirrored, tmp_path: Path) -> None:
    second = Mirrored(first.database, tmp_path / "other", first.spark, groups=[{"name": "mine"}])
    with pytest.raises(OtherInstallation) as raised:
        second.once()
    assert "wal2lake teardown --other" in raised.value.remedy
    Mirror(second.config).teardown(other=True)
    assert first.database.rows(MADE) == []
    second.catches_up("t", "u")
