"""PostgreSQL tables, live and exact, as lake tables: `from wal2lake import Mirror, load_config`.

The names are imported when they are first used, so that `import wal2lake` is quick and starts no JVM.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Config, load_config
    from .errors import Wal2LakeError
    from .mirror import Mirror

__all__ = ["Config", "Mirror", "Wal2LakeError", "load_config"]

_HOMES = {"Config": "config", "Mirror": "mirror", "Wal2LakeError": "errors", "load_config": "config"}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
