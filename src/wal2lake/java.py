"""The Java that Spark runs on: that of JAVA_HOME, else the one on the PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OLDEST_JAVA = 17
_ANSWER_SECONDS = 60


@dataclass(frozen=True)
class Java:
    path: str | None
    """of the program; None: there is none"""
    major: int | None
    """None: it does not say"""


def java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")


def find_java() -> Java:
    path = java_path()
    return Java(None, None) if path is None else Java(path, _major(Path(path).resolve()))


def _major(java: Path) -> int | None:
    """Its major version: from the file beside it, which is quick, or by running it."""
    try:
        text = (java.parent.parent / "release").read_text("utf-8")
        found = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    except OSError:
        found = re.search(r'version "([^"]+)"', _answer(java))
    # Java 8 reports 1.8.
    number = re.match(r"(?:1\.)?(\d+)", found[1]) if found else None
    return int(number[1]) if number else None


def _answer(java: Path) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout
