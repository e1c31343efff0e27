"""Stamps a commit into a segment whose rows were written before the commit was known.

Rows of an open transaction have marks instead of commit LSN and commit time. These columns are dictionary-encoded and
uncompressed, so that each row group holds a mark once; stamping replaces its eight bytes. The result is an ordinary
Parquet file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from ..change import MARKED_LSN, MARKED_US

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_VALUE = struct.Struct("<q")


@dataclass(frozen=True)
class CommitStamp:
    """The commit to stamp."""

    lsn: int
    us: int
    """microseconds since 1970-01-01 UTC"""


class Mark(NamedTuple):
    """Bytes that occur exactly once in a range of a file, and their replacement of the same length."""

    begin: int
    end: int
    mark: bytes
    value: bytes


def marks(metadata: pq.FileMetaData, columns: tuple[str, str], commit: CommitStamp) -> Iterator[Mark]:
    """The marks in a completely written file; `columns` are those of commit LSN and commit time."""
    wanted = dict(zip(columns, ((MARKED_LSN, commit.lsn), (MARKED_US, commit.us)), strict=True))
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for place in range(rows.num_columns):
            chunk = rows.column(place)
            if chunk.path_in_schema in wanted:
                begin, end = chunk.dictionary_page_offset, chunk.data_page_offset
                if begin is None:
                    raise ValueError(f"column {chunk.path_in_schema} was written without a dictionary")
                mark, value = wanted[chunk.path_in_schema]
                yield Mark(begin, end, _VALUE.pack(mark), _VALUE.pack(value))


def exchange(file: BinaryIO, marks: Iterable[Mark]) -> None:
    """Replace marks in place. Raises ValueError if a range does not contain its mark exactly once."""
    for begin, end, mark, value in marks:
        file.seek(begin)
        page = file.read(end - begin)
        at = page.find(mark)
        if at < 0 or page.find(mark, at + 1) >= 0:
            raise ValueError(f"bytes {begin} to {end} do not contain their mark once")
        file.seek(begin + at)
        file.write(value)
