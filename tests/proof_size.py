"""How large the slow proofs are: their long form, or a short one that still goes every way of the code.

WAL2LAKE_TEST_PROOFS=short chooses the short form; the variable of a single proof (ROUNDS, SECONDS, …) wins over both.
"""

from __future__ import annotations

import os

SHORT = os.environ.get("WAL2LAKE_TEST_PROOFS") == "short"


def proof_size(variable: str, *, long: int, short: int) -> int:
    """The size of a proof: what `variable` says, or the long or short form."""
    return int(os.environ.get(variable) or (short if SHORT else long))
