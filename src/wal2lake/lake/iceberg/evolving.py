"""Changes the columns of an Iceberg table within a transaction."""

from __future__ import annotations

from typing import Any

from ...evolution import changes
from ...schema import TableSchema
from .java import Java

_MOVING = "wal2lake_moving_"


def change_columns(java: Java, transaction: Any, before: TableSchema, after: TableSchema) -> None:
    """Drop, rename, widen and add columns, from one schema to another."""
    wanted = changes(before, after)
    if wanted.dropped or wanted.renamed:
        # Via temporary names: two columns may swap their names.
        first = transaction.updateSchema()
        for column in wanted.dropped:
            first.deleteColumn(column.name)
        for place, (old, _) in enumerate(wanted.renamed):
            first.renameColumn(old.name, _MOVING + str(place))
        first.commit()
    if wanted.renamed or wanted.widened or wanted.added:
        second = transaction.updateSchema()
        for place, (_, new) in enumerate(wanted.renamed):
            second.renameColumn(_MOVING + str(place), new.name)
        moved = {old.attnum: _MOVING + str(place) for place, (old, _) in enumerate(wanted.renamed)}
        for old, new in wanted.widened:
            second.updateColumn(moved.get(old.attnum, old.name), java.type(new.lake))
        for column in wanted.added:
            second.addColumn(None, column.name, java.type(column.lake), None)
        second.commit()
