"""Brings the actual state to the desired one: which tables a group has, and what happens to each.

Names are imported when they are first used: commands that only read need few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazily import names_of

if TYPE_CHECKING:
    from .capture_mode import Choice, choose
    from .change_policy import FOLLOW, Policy, unfollowed
    from .commands import Commands, GroupSummary
    from .desired_state import DesiredStateReader
    from .desired_tables import (
        Naming,
        desired_oids,
        enabled,
        groups_of,
        listed,
        named,
    )
    from .group_removal import drop_group, drop_other, leftovers
    from .handover import Handovers
    from .lake_names import LakeNames
    from .reconciler import Reconciler
    from .registry import TableRegistry
    from .renaming import Renaming
    from .schema_changes import ExchangeNeeded, SchemaChanges
    from .table_runtime import TableRuntime
    from .unsaved import Unsaved

__all__ = [
    "FOLLOW",
    "Choice",
    "Commands",
    "DesiredStateReader",
    "ExchangeNeeded",
    "GroupSummary",
    "Handovers",
    "LakeNames",
    "Naming",
    "Policy",
    "Reconciler",
    "Renaming",
    "SchemaChanges",
    "TableRegistry",
    "TableRuntime",
    "Unsaved",
    "choose",
    "desired_oids",
    "drop_group",
    "drop_other",
    "enabled",
    "groups_of",
    "leftovers",
    "listed",
    "named",
    "unfollowed",
]

__getattr__ = names_of(
    __name__,
    {
        "capture_mode": (
            "Choice",
            "choose",
        ),
        "change_policy": (
            "FOLLOW",
            "Policy",
            "unfollowed",
        ),
        "commands": (
            "Commands",
            "GroupSummary",
        ),
        "desired_state": ("DesiredStateReader",),
        "desired_tables": (
            "Naming",
            "enabled",
            "groups_of",
            "listed",
            "named",
            "desired_oids",
        ),
        "group_removal": (
            "drop_group",
            "drop_other",
            "leftovers",
        ),
        "handover": ("Handovers",),
        "lake_names": ("LakeNames",),
        "reconciler": ("Reconciler",),
        "registry": ("TableRegistry",),
        "renaming": ("Renaming",),
        "schema_changes": (
            "ExchangeNeeded",
            "SchemaChanges",
        ),
        "table_runtime": ("TableRuntime",),
        "unsaved": ("Unsaved",),
    },
)
