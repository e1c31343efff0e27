"""The kind of file system of a directory: SQLite's locks and shared memory don't work on network file systems."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_NETWORK = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x19830326: "BeeGFS",
    0x73757245: "Coda",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x786F4256: "VirtualBox shared folder",
    0xBACBACBC: "VMware shared folder",
}
"""magic numbers in statfs(2) of file systems that several machines may write, or that another process serves"""


def network_file_system(path: Path) -> str | None:
    """The name of the network file system of a path, which need not exist; None if it is local or unknown."""
    magic = _magic(_existing(path))
    return None if magic is None else _NETWORK.get(magic)


def _existing(path: Path) -> Path:
    """The path, or the nearest existing directory above it, with links resolved."""
    path = path.resolve()
    return next((each for each in (path, *path.parents) if each.exists()), path)


def _magic(path: Path) -> int | None:
    """`f_type` of statfs, which Python's os module lacks; None if unavailable."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    # f_type is the first member, with the size of a long; the structure has 120 bytes.
    answer = ctypes.create_string_buffer(512)
    if libc.statfs(os.fsencode(path), answer) != 0:
        return None
    return ctypes.c_long.from_buffer(answer).value & 0xFFFFFFFF
