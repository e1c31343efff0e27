"""What goes over a replication connection: the server's messages, many at a time, and ours. Nothing here waits.

libpq makes the connection and ends it; what happens in between depends on whether it encrypts (choice.py).
"""

from .choice import over
from .contract import Arrived, Broken, Refused, Said, Wire

__all__ = ["Arrived", "Broken", "Refused", "Said", "Wire", "over"]
