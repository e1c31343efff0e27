"""numpy and pyarrow, loaded when a value is first decoded.

Commands that only read the catalog need the facts about types and never decode values, and importing these two takes
longer than everything else that such a command does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import pyarrow.compute as pc
else:

    class _Module:
        """A module that is imported with the first use of one of its names."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            found = getattr(import_module(self._name), attribute)
            # Later uses find it without this call.
            setattr(self, attribute, found)
            return found

    np, npt = _Module("numpy"), _Module("numpy.typing")
    pa, pc = _Module("pyarrow"), _Module("pyarrow.compute")

__all__ = ["np", "npt", "pa", "pc"]
