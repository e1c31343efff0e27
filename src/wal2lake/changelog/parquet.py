"""Columns of a segment, read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa


def read_columns(file: BinaryIO, names: Sequence[str]) -> pa.Table | None:
    """Some columns; None if it is no Parquet file that has them. Errors of the storage are raised."""
    import pyarrow.parquet as pq

    try:
        return pq.read_table(file, columns=list(names))
    except OSError as error:
        # Those of the Parquet reader have no number.
        if error.errno is not None:
            raise
        return None
