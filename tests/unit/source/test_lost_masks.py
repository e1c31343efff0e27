"""A table that had masks under a name that it lost: it was renamed, or detached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wal2lake.config import TableConfig
from wal2lake.errors import ConfigError
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.source.tables.selection import lost_masks, require_masks
from wal2lake.types import STRING, Masking

ROOT, LEAF, OTHER = (TableId("public", name) for name in ("root", "leaf", "other"))
CLEAR = TableSchema(7, LEAF, (Column("email", 25, -1, "text", STRING),), (), ReplicaIdentity.FULL)
MASKED = replace(CLEAR, columns=(replace(CLEAR.columns[0], mask=Masking.NULL),))
LEAF_OF_ROOT = replace(MASKED, settings_from=(ROOT,))
OTHER_COLUMN = Column("other", 25, -1, "text", STRING)
HASHED = replace(OTHER_COLUMN, mask=Masking.SHA256)
FILTER = TableConfig(where="true")
MASKS = TableConfig(mask={"email": Masking.NULL})


@pytest.mark.parametrize(
    ("tables", "last", "schema", "lost"),
    [
        ({"public.root": MASKS}, LEAF_OF_ROOT, CLEAR, (ROOT,)),  # detached
        ({"public.root": MASKS}, LEAF_OF_ROOT, replace(CLEAR, settings_from=(OTHER,)), (ROOT,)),  # its root was renamed
        ({"public.root": MASKS}, replace(MASKED, id=ROOT), CLEAR, (ROOT,)),  # renamed
        ({"public.root": MASKS, "public.leaf": TableConfig(flush_interval=9)}, LEAF_OF_ROOT, CLEAR, (ROOT,)),
        ({"public.root": MASKS, "public.leaf": TableConfig(mask={})}, LEAF_OF_ROOT, CLEAR, ()),
        ({}, LEAF_OF_ROOT, CLEAR, ()),  # somebody has taken the masks out
        ({}, LEAF_OF_ROOT, replace(CLEAR, settings_from=(ROOT,)), ()),
        ({"public.root": MASKS}, LEAF_OF_ROOT, replace(MASKED, settings_from=(OTHER,)), ()),
        ({"public.root": MASKS}, replace(CLEAR, settings_from=(ROOT,)), CLEAR, ()),
        ({"public.root": MASKS}, None, CLEAR, ()),
        ({"public.root": MASKS}, LEAF_OF_ROOT, replace(CLEAR, columns=(*CLEAR.columns, HASHED)), (ROOT,)),
        ({"public.root": MASKS}, LEAF_OF_ROOT, replace(CLEAR, columns=(OTHER_COLUMN,)), ()),
        ({"public.root": FILTER}, replace(CLEAR, id=ROOT, where="true"), CLEAR, (ROOT,)),
        ({"public.root": FILTER}, replace(CLEAR, id=ROOT, only=(1,)), CLEAR, (ROOT,)),
        ({"public.root": FILTER, "public.leaf": FILTER}, replace(CLEAR, id=ROOT, where="true"), CLEAR, ()),
    ],
)
def test_masks_are_lost_with_a_name_that_the_settings_still_have(
    tables: dict[str, TableConfig], last: TableSchema | None, schema: TableSchema, lost: tuple[TableId, ...]
) -> None:
    assert lost_masks(tables, last, schema) == lost
    if not lost:
        require_masks(tables, last, schema)
        return
    with pytest.raises(ConfigError) as raised:
        require_masks(tables, last, schema)
    assert f"masks and filters of {lost[0]}" in str(raised.value)
    assert "mask = {}" in raised.value.remedy
