"""Which capture mode a test of the whole path uses: that of WAL2LAKE_TEST_CAPTURE, for tests that do not choose."""

from __future__ import annotations

import os
from typing import Any

import pytest

MODE = os.environ.get("WAL2LAKE_TEST_CAPTURE", "auto")


not_by_triggers = pytest.mark.skipif(
    MODE == "trigger",
    reason="triggers identify rows as a whole, and have a table re-copied whose columns change while rows are written",
)


def group(name: str = "default", **settings: Any) -> dict[str, Any]:
    """A group of the configuration."""
    return {"name": name, "capture": MODE, **settings}
