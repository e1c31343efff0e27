"""Quoting of names in commands that people paste: into a shell, psql or the configuration file. Pure.

Statements sent to a server are quoted by their sender: psycopg's `sql` for PostgreSQL, `lake/names.py` for Spark.
A name may hold any character, also a line break; the result is always one line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def shell(text: str) -> str:
    """One word for a shell, always quoted."""
    if text.isprintable():
        return shlex.quote(text) if "'" in text else f"'{text}'"
    return "$'" + _escaped(text, "\\'", lambda char: "".join(f"\\{byte:03o}" for byte in char.encode())) + "'"


def identifier(*names: str) -> str:
    """A name for PostgreSQL, always quoted."""
    return ".".join(_unicode('"', name) for name in names)


def plain(name: str) -> str:
    """A name in double quotes with every character as it is: for statements, not for pasting."""
    return '"' + name.replace('"', '""') + '"'


def plain_literal(text: str) -> str:
    """A string in single quotes with every character as it is: for commands of the replication protocol."""
    return "'" + text.replace("'", "''") + "'"


def literal(text: str) -> str:
    """A string for PostgreSQL, for the default standard_conforming_strings = on."""
    return _unicode("'", text)


def _unicode(quote: str, text: str) -> str:
    if text.isprintable():
        return quote + text.replace(quote, quote * 2) + quote
    inner = _escaped(text, "\\", lambda char: f"\\+{ord(char):06x}").replace(quote, quote * 2)
    return f"U&{quote}{inner}{quote}"


def regclass(*names: str) -> str:
    """A string for PostgreSQL that regclass reads as a name."""
    return literal(".".join(map(plain, names)))


def dollar_quoted(body: str) -> str:
    """The body of a DO statement, between dollar-quotes that do not occur in it."""
    mark, number = "$$", 0
    while mark in body:
        number += 1
        mark = f"$body{number}$"
    return f"{mark} {body} {mark}"


def toml(text: str) -> str:
    """A string or key for TOML; a literal string where possible, so that names in double quotes stay readable."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(text: str) -> str:
    """A key for TOML, bare where possible."""
    return text if _BARE_KEY.fullmatch(text) else toml(text)


def _escaped(text: str, special: str, code: Callable[[str], str]) -> str:
    """A text with escapes for what can't be printed; `special` characters get a backslash."""
    return "".join("\\" + char if char in special else char if char.isprintable() else code(char) for char in text)
