"""Capture by statement-level triggers: what is installed, and how the buffers that they fill are read."""

from .buffered_stream import BufferedStream
from .definition import whole
from .draining import unread
from .installing import Condition, lacking_rights, may_install
from .installing import conditions as trigger_conditions
from .installing import exists as has_buffers
from .installing import obstacles as trigger_obstacles
from .lane import buffered_types
from .lane import info as lane_info
from .removing import drop_lane, drop_place, tidy
from .rights import Lacking, create_enabling, create_place, owned
from .stream import TriggerStream

__all__ = [
    "BufferedStream",
    "Condition",
    "Lacking",
    "TriggerStream",
    "buffered_types",
    "create_enabling",
    "create_place",
    "drop_lane",
    "drop_place",
    "has_buffers",
    "lacking_rights",
    "lane_info",
    "may_install",
    "owned",
    "tidy",
    "trigger_conditions",
    "trigger_obstacles",
    "unread",
    "whole",
]
