"""Named points at which a test can end the process, to prove that a crash there loses nothing.

`WAL2LAKE_FAULT=<point>` makes the process that reaches the point kill itself;
unset, a point costs a look-up.
"""

from __future__ import annotations

import os
import signal

SEGMENT_WRITTEN = "segment-written"
MANIFEST_PUBLISHED = "manifest-published"
LAKE_STAGED = "lake-staged"
LAKE_COMMITTED = "lake-committed"
COPY_WRITTEN = "copy-written"
LAKE_EVOLVED = "lake-evolved"
LAKE_RENAMED = "lake-renamed"
LAKE_COMPACTED = "lake-compacted"
SNAPSHOTS_EXPIRED = "snapshots-expired"


def reached(point: str) -> None:
    if os.environ.get("WAL2LAKE_FAULT") == point:
        os.kill(os.getpid(), signal.SIGKILL)
