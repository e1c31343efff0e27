"""Texts use the standard words of the field; words that this project used for other things are refused."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

INSTEAD = {
    r"wish(?:es)?|fulfil(?:s|led|ment)?|heed(?:s|ed|ing)?|wants? (?:a|its|no) ": "desired state, spec, reconcile, needs",
    r"rosters?|adopt(?:s|ed|ing)?|tak(?:es?|en|ing) leave": "table registry, add, drop",
    r"books|chores?|pump(?:s|ed|ing)?|tending|the pace": "state writer, background tasks, capture worker, maintenance queue",
    r"hurr(?:y|ies|ied)|attends?|fac(?:es?|ing) (?:the |a )?loss": "request a flush, poll commands, handle slot loss",
    r"(?:is|are|was|were|be|being) told(?: of| apart)?": "is notified, is written to, is identified",
    r"tells? (?:rows|them|it) apart": "identifies",
    r"files? of nobody|rubbish": "orphan files, retired files",
    r"cop(?:y|ies|ied) (?:\w+ )?anew|fresh cop(?:y|ies)": "re-copied, resync, initial copy",
    r"let(?:s|ting)? go|files (?:are|were) joined": "expire, release, compact",
    r"(?:is|are|was|were) set back": "restored to an earlier point, rolled back",
    r"foreign lake table": "a table that wal2lake did not make",
    r"(?:stands?|standing|is|are) in (?:the|its|their) way": "blocks, fails a preflight check",
    r"the way of a change|the house|where it ends": "data flow, package layout, limitations",
    r"manifests? (?:is|are) cut": "a manifest is written, the log is flushed",
    r"Try: nothing|^nothing:": "No action needed: …",
}
"""the left column of the glossary as it occurs in texts, and what to write instead"""

ALLOWED = {
    (
        "src/wal2lake/schema.py",
        "heeds",
    ): "a key in stored JSON: schemas of existing change logs and lake tables have it",
    ("docs/decisions/0041-remedies-are-carried-out-by-tests.md", "heed"): "the name of a function in the tests",
}
"""places where such a word stays, each with the reason"""


def forbidden(text: str) -> Iterator[tuple[str, str]]:
    """The forbidden words in a text, each with what to write instead."""
    for pattern, instead in INSTEAD.items():
        for found in re.finditer(rf"(?im)(?<!\w)(?:{pattern})(?!\w)", text):
            yield found[0], instead


def sentences(file: Path) -> str:
    """What people read in a file: of Python its comments, docstrings and strings; of SQL its comments; else all."""
    text = file.read_text("utf-8")
    if file.suffix == ".sql":
        return "\n".join(re.findall(r"--.*", text))
    if file.suffix != ".py":
        return re.sub(r"(?s)```.*?```", "", text)
    tree = ast.parse(text)
    parts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    parts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(" ".join(part.split()) for part in parts)


def pages() -> list[Path]:
    found = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    for folder, suffixes in (("src", (".py", ".sql")), ("docs", (".md",))):
        found += [file for file in sorted((ROOT / folder).rglob("*")) if file.suffix in suffixes]
    return found


@pytest.mark.parametrize("file", pages(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_field(file: Path) -> None:
    name = str(file.relative_to(ROOT))
    found = [(word, instead) for word, instead in forbidden(sentences(file)) if (name, word.lower()) not in ALLOWED]
    assert not found, "\n".join(f"{name}: {word!r}; write: {instead}" for word, instead in found)


@pytest.mark.parametrize(
    "text",
    [
        "the table is copied anew", "Try: nothing: it is tried again", "nothing: it heals", "files of nobody are removed",
        "an open transaction stands in the way", "snapshots are let go of", "what the wishes say", "a manifest is cut",
    ],
)  # fmt: skip
def test_a_word_of_the_old_dialect_is_found(text: str) -> None:
    assert list(forbidden(text))


def test_comments_docstrings_and_strings_are_read(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('"""Copied\nanew."""\n# rubbish\nmessage = f"{1} stands in the way"\nheed = 1\n')
    assert [word.lower() for word, _ in forbidden(sentences(file))] == ["rubbish", "copied anew", "stands in the way"]


def test_allowed_places_exist() -> None:
    for (name, word), reason in ALLOWED.items():
        assert word in sentences(ROOT / name).lower(), f"not needed any more: {name}, {word}"
        assert reason
