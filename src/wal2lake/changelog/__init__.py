"""The hand-over from capture to lake: durable segments, published by manifests.

Other packages use the names that are listed here, never the modules behind them.
"""

from .backlog import Backlog
from .budget import RECHECK_SECONDS, Budget, Usage
from .manifest import Manifest, ManifestEntry, Segment
from .origin import Origin, Start, logged_groups
from .refusals import refused
from .retention import Retention
from .segment import SegmentRows, SegmentWriter
from .stamp import CommitStamp
from .storage import LogStorage
from .storages.choice import scratch_for, storage_for
from .store import ChangeLog
from .witness import Witness

__all__ = [
    "RECHECK_SECONDS",
    "Backlog",
    "Budget",
    "ChangeLog",
    "CommitStamp",
    "LogStorage",
    "Manifest",
    "ManifestEntry",
    "Origin",
    "Retention",
    "Segment",
    "SegmentRows",
    "SegmentWriter",
    "Start",
    "Usage",
    "Witness",
    "logged_groups",
    "refused",
    "scratch_for",
    "storage_for",
]
