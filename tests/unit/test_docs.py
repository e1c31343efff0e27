"""The reference pages are what the code says, and links between pages lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "wal2lake"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_files_that_the_pages_name_exist() -> None:
    named = {
        name
        for page in (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")
        for name in re.findall(r"`([a-z_]+/[\w/]+\.py|[a-z_]+\.py)`", page.read_text("utf-8"))
    }
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / "src" / "wal2lake" / name).exists()) == []


@pytest.mark.parametrize("process", ["The capture process", "The main process"])
def test_a_change_passes_the_files_of_the_page_in_the_direction_of_imports(process: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = text[text.index(process) : text.index("\n\n", text.index("|---|", text.index(process)))]
    files = re.findall(r"^\| `([\w/]+)\.py` \|", section, re.MULTILINE)
    assert 5 < len(files) <= 16
    for number, file in enumerate(files[1:], 1):
        assert any(file in _imported(above) for above in files[:number]), f"{file} is imported by none above it"


def _imported(file: str) -> set[str]:
    """The modules that a module imports; through the door of a package, all that are behind it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((SOURCES / f"{file}.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = Path(*Path(file).parts[: -node.level], *(node.module or "").split("."))
            for name in (base, *(base / alias.name for alias in node.names)):
                if (SOURCES / f"{name}.py").exists():
                    found.add(name.as_posix())
                elif name.parts and (SOURCES / name / "__init__.py").exists():
                    found |= {
                        path.relative_to(SOURCES).with_suffix("").as_posix() for path in (SOURCES / name).glob("*.py")
                    }
    return found
