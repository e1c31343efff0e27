"""Publications, slots and timelines."""

from .conditions import stream_obstacles
from .contents import exists as publication_exists
from .contents import tables_of
from .contents import types_in as published_types
from .plugin import PluginTrial, try_plugin
from .publication import (
    append_name,
    filter_columns,
    publication_name,
)
from .publication import (
    drop as drop_publication,
)
from .publication import (
    used_by as publication_used_by,
)
from .replica_identity import Identified, is_identified
from .slot import (
    SlotInfo,
    slot_name,
)
from .slot import (
    drop as drop_slot,
)
from .slot import (
    info as slot_info,
)
from .timeline import left_at as timeline_left_at
from .timeline import left_at_through_sql as timeline_left_at_through_sql

__all__ = [
    "Identified",
    "PluginTrial",
    "SlotInfo",
    "append_name",
    "drop_publication",
    "drop_slot",
    "filter_columns",
    "is_identified",
    "publication_exists",
    "publication_name",
    "publication_used_by",
    "published_types",
    "slot_info",
    "slot_name",
    "stream_obstacles",
    "tables_of",
    "timeline_left_at",
    "timeline_left_at_through_sql",
    "try_plugin",
]
