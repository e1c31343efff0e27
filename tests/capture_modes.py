"""Which capture mode a test of the whole path uses: that of WAL2LAKE_TEST_CAPTURE, for tests that do not choose."""

from __future__ import annotations

import os
from typing import Any

MODE = os.environ.get("WAL2LAKE_TEST_CAPTURE", "auto")


def group(name: str = "default", **settings: Any) -> dict[str, Any]:
    """A group of the configuration."""
    return {"name": name, "capture": MODE, **settings}
