"""How long decoding takes per row: synthetic pgoutput messages through Intake and Decoder, no I/O.

python bench/decode_rate.py [rows]
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Sequence

from wal2lake.decode import SLICE_BYTES, Decoder, Intake, Target, slices
from wal2lake.position import ZERO
from wal2lake.schema import Column, ReplicaIdentity, TableId, TableSchema
from wal2lake.types import LakeType

HEADER = b"w" + bytes(24)
NARROW = ["long", "int", "string", "decimal(10,2)", "timestamptz", "string"]
FEED = 1000


def table(kinds: Sequence[str]) -> TableSchema:
    columns = tuple(Column(f"c{n}", 25, -1, kind, LakeType.parse(kind)) for n, kind in enumerate(kinds))
    return TableSchema(1, TableId("public", "bench"), columns, ("c0",), ReplicaIdentity.DEFAULT)


def relation(schema: TableSchema) -> bytes:
    columns = b"".join(
        bytes([c.name in schema.key]) + c.name.encode() + b"\0" + struct.pack(">Ii", 25, -1) for c in schema.columns
    )
    return HEADER + b"R\0\0\0\1public\0bench\0d" + struct.pack(">H", len(schema.columns)) + columns


def text(kind: str, number: int) -> bytes:
    match kind:
        case "long" | "int":
            return b"%d" % number
        case "decimal(10,2)":
            return b"%d.%02d" % (number % 100_000, number % 100)
        case "timestamptz":
            return b"2026-01-%02d 12:%02d:00.%06d+00" % (1 + number % 28, number % 60, number % 1_000_000)
        case _:
            return b"some text of row %d" % number


def row(kind: bytes, schema: TableSchema, number: int) -> bytes:
    values = [text(str(column.lake), number) for column in schema.columns]
    cells = b"".join(b"t" + struct.pack(">I", len(value)) + value for value in values)
    return HEADER + kind + b"\0\0\0\1N" + struct.pack(">H", len(values)) + cells


def begin(lsn: int) -> bytes:
    return HEADER + b"B" + struct.pack(">QqI", lsn, 0, 1)


def commit(lsn: int) -> bytes:
    return HEADER + b"C\0" + struct.pack(">QQq", lsn, lsn + 1, 0)


def measure(name: str, schema: TableSchema, messages: list[bytes], units: int) -> None:
    best_feed = best_decode = float("inf")
    for _ in range(3):
        decoder, intake = Decoder(lambda *_: Target(schema, 1), ZERO), Intake()
        clock = time.perf_counter()
        for at in range(0, len(messages), FEED):
            intake.feed(messages[at : at + FEED])
        fed = time.perf_counter()
        decoded = [rows.decode() for some in slices(intake.take_complete(), SLICE_BYTES) for rows in decoder.plan(some)]
        done = time.perf_counter()
        best_feed, best_decode = min(best_feed, fed - clock), min(best_decode, done - fed)
        if sum(table.batch.num_rows for table, _ in decoded if table) != units or any(
            refused for _, refused in decoded
        ):
            raise SystemExit(f"{name}: wrong result")
    each = 1e6 / units
    total = best_feed + best_decode
    print(f"{name}: {total * each:.2f} µs (feed {best_feed * each:.2f}, decode {best_decode * each:.2f})")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    narrow, wide = table(NARROW), table(NARROW * 10)
    inserts = [row(b"I", narrow, number) for number in range(count)]
    measure("insert of 6 columns, one transaction", narrow, [begin(10), relation(narrow), *inserts, commit(10)], count)
    singles = [begin(1), relation(narrow), commit(1)]
    for number in range(count):
        lsn = 10 * (number + 1)
        singles += begin(lsn), row(b"U", narrow, number), commit(lsn)
    measure("update of 6 columns, a transaction each", narrow, singles, count)
    many = count // 10
    inserts = [row(b"I", wide, number) for number in range(many)]
    measure("insert of 60 columns, one transaction", wide, [begin(10), relation(wide), *inserts, commit(10)], many)


if __name__ == "__main__":
    main()
