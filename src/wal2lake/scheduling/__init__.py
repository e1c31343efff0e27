"""Decides what a run does next: groups, captures, copies, applies, maintenance."""

from .group_loop import GroupLoop, GroupPorts
from .supervisor import Supervisor
from .worker_pool import Workers, apply_workers

__all__ = [
    "GroupLoop",
    "GroupPorts",
    "Supervisor",
    "Workers",
    "apply_workers",
]
