"""Named points at which a test can end or freeze the process, to prove that nothing is lost or doubled by it.

`WAL2LAKE_FAULT=<point>` makes the process that reaches the point kill itself; with `<point>:stop` it stops itself
there, once, until somebody lets it continue. Unset, a point costs a look-up.
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

VARIABLE = "WAL2LAKE_FAULT"
STOP = ":stop"


def reached(point: str) -> None:
    wanted = os.environ.get(VARIABLE)
    if wanted == point:
        os.kill(os.getpid(), signal.SIGKILL)
    elif wanted == point + STOP:
        del os.environ[VARIABLE]
        os.kill(os.getpid(), signal.SIGSTOP)
