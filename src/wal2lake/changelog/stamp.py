"""A commit entered into a segment whose rows were written before it was known.

While a transaction runs, its rows carry marks where its commit's LSN and time belong. Such a column is written with a
dictionary, and uncompressed, so that each row group holds the mark once; the commit is entered by exchanging those
eight bytes. What comes of it is an ordinary Parquet file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MARKED_LSN = 0x7A11_57EA_3D5C_96B1
MARKED_US = 0x0B24_68AC_E135_79D7
"""microseconds since 1970; far from any time that PostgreSQL knows"""
_VALUE = struct.Struct("<q")


@dataclass(frozen=True)
class Commit:
    """What is entered."""

    lsn: int
    us: int
    """microseconds since 1970-01-01 UTC"""


def stamp(file: BinaryIO, metadata: pq.FileMetaData, columns: tuple[str, str], commit: Commit) -> None:
    """Enter a commit into a file that is written to its end."""
    wanted = dict(zip(columns, ((MARKED_LSN, commit.lsn), (MARKED_US, commit.us)), strict=True))
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for place in range(rows.num_columns):
            chunk = rows.column(place)
            if chunk.path_in_schema in wanted:
                _exchange(file, chunk, *wanted[chunk.path_in_schema])


def _exchange(file: BinaryIO, chunk: Any, mark: int, value: int) -> None:
    begin, end = chunk.dictionary_page_offset, chunk.data_page_offset
    if begin is None:
        raise ValueError(f"column {chunk.path_in_schema} was written without a dictionary")
    file.seek(begin)
    page = file.read(end - begin)
    at = page.find(_VALUE.pack(mark))
    if at < 0 or page.find(_VALUE.pack(mark), at + 1) >= 0:
        raise ValueError(f"column {chunk.path_in_schema} does not hold its mark once")
    file.seek(begin + at)
    file.write(_VALUE.pack(value))
