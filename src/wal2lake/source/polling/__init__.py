"""A replication slot that is read through SQL."""

from .stream import PollingStream, open_polling

__all__ = ["PollingStream", "open_polling"]
