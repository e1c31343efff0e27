"""What an initial copy reads, and the lock that keeps its table unchanged."""

from .copying import require_telling

__all__ = [
    "require_telling",
]
