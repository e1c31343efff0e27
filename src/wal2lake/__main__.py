"""`python -m wal2lake` is the command `wal2lake`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
