"""Named points at which a test can kill or stop the process.

`WAL2LAKE_FAULT=<point>` makes the process kill itself at that point; `<point>:stop` makes it stop itself there, once,
until it receives SIGCONT. Without the variable a point costs one look-up.
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
PARTITIONS_EXCHANGED = "partitions-exchanged"
LAKE_COMPACTED = "lake-compacted"
SNAPSHOTS_EXPIRED = "snapshots-expired"
CROSSING_PUBLISHED = "crossing-published"
CROSSING_SLOT_MADE = "crossing-slot-made"
CROSSING_STOPPED = "crossing-stopped"
CROSSED = "crossed"
CROSSING_UNDONE = "crossing-undone"
BUFFER_PUBLISHED = "buffer-published"
BUFFER_RETIRED = "buffer-retired"

VARIABLE = "WAL2LAKE_FAULT"
STOP = ":stop"


def reached(point: str) -> None:
    wanted = os.environ.get(VARIABLE)
    if wanted == point:
        os.kill(os.getpid(), signal.SIGKILL)
    elif wanted == point + STOP:
        del os.environ[VARIABLE]
        os.kill(os.getpid(), signal.SIGSTOP)
