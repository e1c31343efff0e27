"""A replication slot that is read through SQL."""

from .stream import open_polling

__all__ = ["open_polling"]
