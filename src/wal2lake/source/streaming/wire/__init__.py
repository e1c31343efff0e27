"""The messages on a replication connection: the server's, many at a time, and ours. Nothing here waits.

libpq opens and closes the connection; in between, encryption decides who reads the socket (choice.py).
"""

from .choice import over
from .contract import Arrived, Broken, Refused, Said, Wire

__all__ = ["Arrived", "Broken", "Refused", "Said", "Wire", "over"]
