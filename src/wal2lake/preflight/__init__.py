"""Checks before a start: what is read, and how it is judged."""

from .checks import script
from .collect import check
from .findings import Finding, Severity
from .role_sql import CAPTURES, Service, requested, role_script

__all__ = [
    "CAPTURES",
    "Finding",
    "Service",
    "Severity",
    "check",
    "requested",
    "role_script",
    "script",
]
