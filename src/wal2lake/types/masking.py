"""Masks: what replaces the values of a column. They work on PostgreSQL's text, so they are the same for every type."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING

from .family import output_text
from .lazily import pa
from .slices import views

if TYPE_CHECKING:
    from .slices import Slices


class Masking(StrEnum):
    """What replaces the values of a column."""

    SHA256 = "sha256"
    """the SHA-256 of PostgreSQL's text in UTF-8, as lower-case hex digits"""
    NULL = "null"


def masked(text: str, mask: Masking) -> str | None:
    """The masked text of a value."""
    return hashlib.sha256(text.encode()).hexdigest() if mask is Masking.SHA256 else None


def masked_select(quoted: str, mask: Masking) -> str:
    """What the initial copy selects of a masked column: its values do not leave the server."""
    return "NULL::int4" if mask is Masking.NULL else sha256_sql(quoted)


def sha256_sql(quoted: str) -> str:
    return f"encode(sha256(convert_to({output_text(quoted)}, 'UTF8')), 'hex')"


def sha256(text: Slices) -> pa.Array:
    """The hashes of the texts, in hex digits; NULL stays NULL."""
    digest = hashlib.sha256
    values = views(text, pa.binary_view()).to_pylist()
    return pa.array([None if value is None else digest(value).hexdigest() for value in values], pa.string())
