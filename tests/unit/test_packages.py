"""Every package has a door: what other packages may import of it is agreed in pyproject.toml, and nothing is left out."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from wal2lake.reconcile.table_runtime import TableRuntime

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "wal2lake"
PACKAGES = sorted(path.parent.name for path in SOURCES.glob("*/__init__.py"))
OFFERED_WHOLE = {
    "source": {"copies", "polling", "publishing", "sessions", "streaming", "tables", "triggers"},
    "state": {"events", "lifecycle", "postgres"},
}
"""modules and packages within a package that others may import, with the names that they have"""


def protected() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    assert not [name for contract in contracts for name in contract if name.startswith("ignore_")]
    return [name for contract in contracts if contract["type"] == "protected" for name in contract["protected_modules"]]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_modules_of_a_package_are_behind_its_door(package: str) -> None:
    inside = {path.stem for path in (SOURCES / package).glob("*.py")} - {"__init__"}
    inside |= {path.parent.name for path in (SOURCES / package).glob("*/__init__.py")}
    expressions = [name for name in protected() if name.startswith(f"wal2lake.{package}.")]
    closed = {
        name for name in inside if any(fnmatchcase(f"wal2lake.{package}.{name}", each) for each in expressions
                                       if each.count(".") == 2)
    }  # fmt: skip
    assert inside - closed == OFFERED_WHOLE.get(package, set())


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_offers_the_names_that_it_lists(package: str) -> None:
    module = importlib.import_module(f"wal2lake.{package}")
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_no_module_has_more_than_400_lines() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in SOURCES.rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > 400} == {}


def test_no_folder_has_more_than_16_modules() -> None:
    counted = Counter(path.parent for path in SOURCES.rglob("*.py") if not path.stem.startswith("__"))
    assert {folder.name: modules for folder, modules in counted.items() if modules > 16} == {}


def assigned(source: str) -> Iterator[tuple[str, str]]:
    """Attributes that are set of something other than `self`, each with what it is set of."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls"):
                yield owner, node.attr


def test_the_state_of_a_table_changes_through_its_own_methods_only() -> None:
    own = {field.name for field in fields(TableRuntime)}
    found = {
        (path.name, owner, attribute)
        for package in ("reconcile", "scheduling")
        for path in (SOURCES / package).glob("*.py")
        for owner, attribute in assigned(path.read_text("utf-8"))
        if attribute in own
    }
    # What a plan gathers has a schema, too.
    assert found - {("batch_plan.py", "gathered", "schema")} == set()


def test_the_search_finds_a_table_that_is_changed_from_outside() -> None:
    assert set(assigned("def f(table):\n    table.life, self.x = after, 1\n    table.waiting += 1")) == {
        ("table", "life"), ("table", "waiting"),
    }  # fmt: skip


def test_only_its_own_package_names_a_table_format() -> None:
    """The rest of the lake knows the port; `lake/choice.py` chooses."""
    lake = SOURCES / "lake"
    named = [
        str(path.relative_to(lake))
        for path in sorted(lake.rglob("*.py"))
        if lake / "iceberg" not in path.parents and "iceberg" in path.read_text("utf-8").lower()
    ]
    assert named == ["__init__.py", "choice.py", "format.py"]
