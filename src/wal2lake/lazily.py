"""Packages whose names are imported when they are first used, so that an import loads no more than is needed.

Such a package names its modules twice: for type checkers as imports, for Python as arguments of `names_of`.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_of(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: the names that each of its modules provides."""
    homes = {name: module for module, names in modules.items() for name in names}

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{homes[name]}", package), name)

    return getattribute
