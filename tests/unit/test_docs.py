"""The reference pages are up to date, and links between pages exist."""

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
    folders = (ROOT, ROOT / "src" / "wal2lake")
    assert sorted(name for name in named if not any((folder / name).exists() for folder in folders)) == []


def test_each_decision_has_a_number_of_its_own_and_a_line_in_their_index() -> None:
    pages = sorted(page.name for page in (ROOT / "docs" / "decisions").glob("0*.md"))
    assert len({name[:4] for name in pages}) == len(pages)
    rows = (ROOT / "docs" / "decisions" / "README.md").read_text("utf-8").splitlines()[6:]
    listed = [re.fullmatch(r"\| (\d{4}) \| \[.+\]\((\1-[\w-]+\.md)\) \|", row) for row in rows]
    assert [found and found[2] for found in listed] == pages


PORTS = ["source/ports", "lake/format"]
"""protocols whose implementation is chosen elsewhere"""
PROCESSES = ["The capture process", "The main process"]


def files_of_an_update(process: str) -> list[str]:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = text[text.index(process) : text.index("\n\n", text.index("|---|", text.index(process)))]
    return re.findall(r"^\| `([\w/]+)\.py` \|", section, re.MULTILINE)


@pytest.mark.parametrize("process", PROCESSES)
def test_a_change_passes_the_files_of_the_page_in_the_direction_of_imports(process: str) -> None:
    files = files_of_an_update(process)
    assert len(files) > 5
    for number, file in enumerate(files[1:], 1):
        imported = any(file in _imported(above) for above in files[:number])
        implements = any(
            port in _imported(file) and port in _imported(above) for above in files[:number] for port in PORTS
        )
        assert imported or implements, f"{file} is imported by none above it"


def test_the_example_of_a_capture_mode_has_less_than_100_lines() -> None:
    assert len((ROOT / "tests" / "replayed_source.py").read_text("utf-8").splitlines()) < 100


def test_one_update_passes_25_files_at_most() -> None:
    files = [file for process in PROCESSES for file in files_of_an_update(process)]
    assert 15 < len(set(files)) == len(files) <= 25


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
