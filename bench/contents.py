"""Is what a side has produced what the database holds? Whole tables, all columns, as multisets of rows.

    rows before the load + its changes, the last of each key = rows after the load

Both sides become Arrow columns of few types (long, double, string); rows of the one count +1, rows of the other -1, and
what does not sum to zero is a difference. PostgreSQL's own functions bring its values into these types.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from wal2lake.changelog import ChangeLog, Segment

from .model import WrongData

SIDE = "\0side"
OP, COMMIT, SEQ = "_op", "_commit_lsn", "_seq"
_AS_LONG = {
    "bool": "{}::int",
    "date": "{} - date '1970-01-01'",
    "timestamptz": "(extract(epoch FROM {}) * 1000000)::bigint",
    "timestamp": "(extract(epoch FROM {}) * 1000000)::bigint",
    **dict.fromkeys(("int2", "int4", "int8"), "{}"),
}
_AS_DOUBLE = ("float4", "float8")


class SourceTable:
    """A table in PostgreSQL, read in the types that are compared."""

    def __init__(self, connection: psycopg.Connection[Any], name: str) -> None:
        self._connection, self.name = connection, name
        found = connection.execute(
            """
            SELECT a.attname, t.typname, coalesce(a.attnum = ANY (i.indkey), false), a.attrelid::int8
              FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
              LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
             WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
            """,
            (name,),
        ).fetchall()
        self.oid = int(found[0][3])
        self.columns = [column for column, *_ in found]
        self.key = next((column for column, _, in_key, _ in found if in_key), None)
        self.types = [(column, self._comparable(kind)) for column, kind, *_ in found]
        self._select = ", ".join(_AS_LONG.get(kind, "{}").format(f'"{column}"') for column, kind, *_ in found)

    @staticmethod
    def _comparable(kind: str) -> Any:
        if kind in _AS_LONG:
            return pa.int64()
        return pa.float64() if kind in _AS_DOUBLE else pa.string()

    def read(self, where: str = "true") -> Any:
        text = io.BytesIO()
        query = f'COPY (SELECT {self._select} FROM "{self.name}" WHERE {where}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)'
        with self._connection.cursor().copy(query.encode()) as blocks:
            for block in blocks:
                text.write(block)
        if not text.tell():
            return pa.table({column: pa.array([], kind) for column, kind in self.types})
        return pyarrow.csv.read_csv(
            pa.py_buffer(text.getbuffer()),
            read_options=pyarrow.csv.ReadOptions(column_names=self.columns, block_size=1 << 26),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict(self.types),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def comparable(self, table: Any) -> Any:
        """Columns of the lake's types in the types that are compared."""
        return pa.table({column: _cast(table[column], kind) for column, kind in self.types})


def _cast(values: Any, wanted: Any) -> Any:
    kind = values.type
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    return (values.cast(pa.int32()) if pa.types.is_date32(kind) else values).cast(wanted)


def require_same_changes(log: ChangeLog, table: SourceTable, before: Any) -> None:
    """The table as it was before and the change log make the table as it is."""
    segments = list(segments_of(log, table.oid))
    if not segments:
        raise WrongData(f"{table.name}: the change log has nothing of it")
    changes = pa.concat_tables(
        pq.read_table(log.uri(segment), columns=[*table.columns, OP, COMMIT, SEQ]) for segment in segments
    )
    require_same_rows(f"{table.name}: change log", overlaid(table, before, changes), table.read())


def overlaid(table: SourceTable, before: Any, changes: Any) -> Any:
    """Rows before the changes, with the last change of each key; without a key all are inserts."""
    if table.key is None:
        if set(changes[OP].unique().to_pylist()) != {"I"}:
            raise WrongData(f"{table.name}: changes other than inserts, and no key")
        return pa.concat_tables([before, table.comparable(changes)])
    changes = changes.sort_by([(table.key, "ascending"), (COMMIT, "ascending"), (SEQ, "ascending")])
    keys = changes[table.key].to_numpy()
    last = changes.filter(pa.array(np.append(keys[1:] != keys[:-1], True)))
    kept = before.filter(pa.array(~np.isin(before[table.key].to_numpy(), keys)))
    return pa.concat_tables([kept, table.comparable(last.filter(pc.not_equal(last[OP], "D")))])


def segments_of(log: ChangeLog, oid: int) -> Iterable[Segment]:
    return (s for manifest in log.after(0) if oid in manifest.tables for s in manifest.tables[oid].segments)


def require_same_rows(what: str, found: Any, expected: Any) -> None:
    both = pa.concat_tables(
        side.append_column(SIDE, pa.repeat(pa.scalar(sign, pa.int64()), side.num_rows))
        for side, sign in ((found, 1), (expected, -1))
    )
    sums = both.group_by(expected.column_names).aggregate([(SIDE, "sum")])[f"{SIDE}_sum"].to_numpy()
    extra, missing = int(sums[sums > 0].sum()), int(-sums[sums < 0].sum())
    if extra or missing:
        raise WrongData(
            f"{what}: {found.num_rows:,} rows where PostgreSQL has {expected.num_rows:,}; "
            f"{missing:,} of PostgreSQL's are missing, {extra:,} are not PostgreSQL's"
        )
