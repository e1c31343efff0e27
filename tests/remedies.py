"""Remedies that contain a command: an inventory of those in the code, and functions that execute them."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

SOURCE = Path(__file__).parents[1] / "src" / "wal2lake"
TESTS = Path(__file__).parent
T = TypeVar("T", bound=Callable[..., Any])

_WORDS = r"""(?:'[^']*'|"[^"]*"|[^;,)'"])"""
_COMMAND = re.compile(rf"wal2lake (?!and\b|on\b|did\b|does\b)[a-z]+{_WORDS}*")
_SQL = re.compile(
    r"\b(?:DO (\$\w*\$) .*? \1|(?:ALTER|CREATE|DROP|GRANT|REVOKE|SELECT|ROLLBACK|COMMIT|UPDATE|DELETE) [A-Z_a-z…]"
    rf"(?:{_WORDS}|[,)])*?(?=;|$|, or |, and ))"
)
_FIX = re.compile(r"wal2lake [a-z]|(?:ALTER|CREATE|DO|DROP|GRANT|REVOKE|SELECT) .*;( --.*)?$")
FIXES = ("preflight/checks.py", "source/tables/facts.py", "source/triggers/rights.py")
"""where the fixes of `check` are written"""


def heals(*remedies: str) -> Callable[[T], T]:
    """Says which remedies a test carries out and finds to heal, each by words of its error, cause or text."""

    def register(test: T) -> T:
        return test

    assert remedies
    return register


def fixes(*statements: str) -> Callable[[T], T]:
    """Says which fixes of `check` a test carries out and finds to help: `function: text`, as `fix_inventory` has it."""
    return heals(*statements)


@dataclass(frozen=True)
class Remedy:
    """A remedy in the code; what is filled in later is an ellipsis."""

    place: str
    error: str
    cause: str
    text: str

    @property
    def names_a_command(self) -> bool:
        return bool(_COMMAND.search(self.text) or _SQL.search(self.text))

    def __str__(self) -> str:
        return f"{self.error}: {self.cause} | {self.text}"


@cache
def inventory() -> list[Remedy]:
    """Every remedy that the code can print: defaults of errors, and those given where an error is raised."""
    return [remedy for path in sorted(SOURCE.rglob("*.py")) for remedy in _of_file(path)]


@cache
def fix_inventory() -> frozenset[str]:
    """Every fix that `check` can print and that is a command or SQL, with the function that it stands in."""
    return frozenset(f"{name}: {text}" for path in FIXES for name, text in _fixes_of_file(SOURCE / path))


def _fixes_of_file(path: Path) -> Iterator[tuple[str, str]]:
    """Texts that begin with a command; parts of longer ones, and texts about commands, do not."""
    tree = ast.parse(path.read_text("utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in parts:
                    text = _template(node)
                    if _FIX.match(text):
                        yield function.name, text


@cache
def registered(decorator: str = "heals") -> frozenset[str]:
    """The words by which tests say what they carry out."""
    found: set[str] = set()
    texts = [text for path in TESTS.rglob("test_*.py") if f"{decorator}(" in (text := path.read_text("utf-8"))]
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == decorator:
                found |= {_template(argument) for argument in node.args}
    return frozenset(found)


def steps(remedy: str) -> list[list[str] | str]:
    """What a remedy says to do, in its order: a command of ours as its arguments, or a statement for PostgreSQL."""
    found: list[tuple[int, list[str] | str]] = []
    for match in _COMMAND.finditer(remedy):
        found.append((match.start(), shlex.split(match[0])[1:]))
    found += [(match.start(), match[0]) for match in _SQL.finditer(remedy)]
    return [step for _, step in sorted(found, key=lambda each: each[0])]


def toml(value: Any, top: bool = True) -> str:
    """A configuration as TOML."""
    match value:
        case dict() if top:
            return "".join(f"{json.dumps(key)} = {toml(each, False)}\n" for key, each in value.items())
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml(each, False)}" for key, each in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(toml(each, False) for each in value) + "]"
        case _:
            return json.dumps(value)


def _of_file(path: Path) -> Iterator[Remedy]:
    text = path.read_text("utf-8")
    if not any(word in text for word in ("remedy", "allowed")):
        return
    name, tree = str(path.relative_to(SOURCE)), ast.parse(text)
    names: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.setdefault(node.targets[0].id, []).append(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "remedy_text":
                    cause = " ".join((ast.get_docstring(node) or "").split())
                    yield Remedy(f"{name}:{each.lineno}", node.name, _blank(cause), _blank(_template(each.value)))
        elif isinstance(node, ast.Call):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            for key in ("remedy", "allowed"):
                value = given.get(key)
                # A text that has a name of its own is each that the name is given in this file.
                texts = names.get(value.id, []) if isinstance(value, ast.Name) else [value] if value else []
                for given_text in texts:
                    cause = _template(given["cause"]) if "cause" in given else ""
                    yield Remedy(f"{name}:{node.lineno}", ast.unparse(node.func), cause, _blank(_template(given_text)))


def _template(node: ast.expr) -> str:
    """The text of a string expression; parts that are computed become an ellipsis."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_template(value) for value in values)
        case ast.BinOp(left=left, right=right):
            return _template(left) + _template(right)
        case _:
            return "…"


def _blank(text: str) -> str:
    """A template for `format` in the same form."""
    return re.sub(r"\{\w+(:\w+)?\}", "…", text).replace("{{", "{").replace("}}", "}")
