"""The hand-over between capture and lake: durable segments, published by manifests."""

from .checksum import verify
from .manifest import Manifest, Refusal, Segment, TableCut, Truncation
from .origin import Origin, Start, logged_groups
from .store import ChangeLog

__all__ = [
    "ChangeLog",
    "Manifest",
    "Origin",
    "Refusal",
    "Segment",
    "Start",
    "TableCut",
    "Truncation",
    "logged_groups",
    "verify",
]
