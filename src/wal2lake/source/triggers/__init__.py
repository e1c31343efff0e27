"""Capture by statement-level triggers: what is installed, and how the buffers that they fill are read."""

from .buffered_stream import BufferedStream
from .draining import unread
from .installing import Condition, may_install
from .installing import conditions as trigger_conditions
from .installing import exists as has_buffers
from .installing import obstacles as trigger_obstacles
from .lane import buffered_types
from .lane import info as lane_info
from .removing import drop_lane, tidy
from .stream import TriggerStream
from .whole_rows import whole

__all__ = [
    "BufferedStream",
    "Condition",
    "TriggerStream",
    "buffered_types",
    "drop_lane",
    "has_buffers",
    "lane_info",
    "may_install",
    "tidy",
    "trigger_conditions",
    "trigger_obstacles",
    "unread",
    "whole",
]
