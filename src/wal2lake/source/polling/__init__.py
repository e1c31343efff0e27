"""A replication slot that is read through SQL."""

from .stream import PollingStream

__all__ = ["PollingStream"]
