"""Types: which lake type carries a PostgreSQL type, and how values are converted. One file per family of types."""

from .family import Converted, Unfit
from .lake import STRING, Kind, LakeType, arrow_type
from .masking import Masking, masked, sha256, sha256_sql
from .own_text import FIRST_USER_OID
from .registry import (
    TYPES,
    CopyColumn,
    PgType,
    Reader,
    TypeTable,
    base_of,
    binary_reader,
    copy_column,
    delimiter,
    from_text,
    lake_type,
    masked_copy_column,
    override_allowed,
    unfit_sql,
    unfit_words,
)
from .slices import PADDING, Bytes, Mask, Positions, Slices, contiguous, views, words
from .time import POSTGRES_EPOCH_US

__all__ = [
    "FIRST_USER_OID",
    "PADDING",
    "POSTGRES_EPOCH_US",
    "STRING",
    "TYPES",
    "Bytes",
    "Converted",
    "CopyColumn",
    "Kind",
    "LakeType",
    "Mask",
    "Masking",
    "PgType",
    "Positions",
    "Reader",
    "Slices",
    "TypeTable",
    "Unfit",
    "arrow_type",
    "base_of",
    "binary_reader",
    "contiguous",
    "copy_column",
    "delimiter",
    "from_text",
    "lake_type",
    "masked",
    "masked_copy_column",
    "override_allowed",
    "sha256",
    "sha256_sql",
    "unfit_sql",
    "unfit_words",
    "views",
    "words",
]
