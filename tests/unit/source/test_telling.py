"""What identifies the rows of a partitioned table: its own key and those of its leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wal2lake.schema import ReplicaIdentity, TableId
from wal2lake.source.tables.catalog_table import CatalogTable
from wal2lake.source.tables.identity import Told, misleading, of

ROOT = CatalogTable(1, TableId("public", "t"), "p", ReplicaIdentity.DEFAULT, (), (), 1, 3, (), 0, (), ())
LEAF = replace(ROOT, oid=2, id=TableId("public", "t_1"), relkind="r", above=(ROOT.id,), partition_columns=("tenant",))
KEYED = replace(LEAF, primary_key=("tenant", "id"), key_index=20)
SHORT = replace(LEAF, primary_key=("id",), key_index=21)
WHOLE = replace(LEAF, identity=ReplicaIdentity.FULL)
BY_INDEX = replace(KEYED, identity=ReplicaIdentity.INDEX, identity_key=("tenant", "code"))
OWN_KEY = replace(ROOT, primary_key=("tenant", "id"), key_index=10)


@pytest.mark.parametrize(
    ("root", "leaves", "told"),
    [
        (OWN_KEY, [], Told(ReplicaIdentity.DEFAULT, ("tenant", "id"), 10)),
        (OWN_KEY, [KEYED, KEYED], Told(ReplicaIdentity.DEFAULT, ("tenant", "id"), 10)),
        (OWN_KEY, [KEYED, WHOLE], Told(ReplicaIdentity.DEFAULT, ("tenant", "id"), 10)),
        (OWN_KEY, [WHOLE, WHOLE], Told(ReplicaIdentity.FULL, ("tenant", "id"), 10)),
        (OWN_KEY, [BY_INDEX, BY_INDEX], Told(ReplicaIdentity.DEFAULT, ("tenant", "code"))),
        (OWN_KEY, [BY_INDEX, KEYED], Told(ReplicaIdentity.DEFAULT)),
        (ROOT, [KEYED, replace(KEYED, primary_key=("id", "tenant"))], Told(ReplicaIdentity.DEFAULT, ("tenant", "id"))),
        (ROOT, [KEYED, LEAF], Told(ReplicaIdentity.DEFAULT)),
        (ROOT, [KEYED, WHOLE], Told(ReplicaIdentity.FULL)),
        (ROOT, [SHORT, SHORT], Told(ReplicaIdentity.DEFAULT)),
        (ROOT, [replace(KEYED, partition_columns=("tenant", None))], Told(ReplicaIdentity.DEFAULT)),
        (ROOT, [replace(KEYED, partition_columns=("region", "tenant"))], Told(ReplicaIdentity.DEFAULT)),
        (ROOT, [WHOLE, WHOLE], Told(ReplicaIdentity.FULL)),
    ],
)
def test_a_key_counts_if_it_is_unique_over_all_partitions(
    root: CatalogTable, leaves: list[CatalogTable], told: Told
) -> None:
    assert of(root, leaves) == told


def test_leaves_that_send_a_key_which_the_whole_table_has_not_mislead() -> None:
    assert misleading(ROOT, [SHORT, WHOLE, LEAF]) == [SHORT]
    assert misleading(ROOT, [WHOLE, LEAF]) == []
    assert misleading(OWN_KEY, [KEYED, WHOLE]) == []


def test_a_plain_table_whose_old_rows_are_sent_whole_has_no_key() -> None:
    plain = replace(OWN_KEY, relkind="r")
    assert of(plain, []) == Told(ReplicaIdentity.DEFAULT, ("tenant", "id"))
    assert of(replace(plain, identity=ReplicaIdentity.FULL), []) == Told(ReplicaIdentity.FULL)
