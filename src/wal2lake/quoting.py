"""Names in what people paste: into a shell, into psql, into the configuration file. Pure.

What goes to a machine is quoted by who sends it: psycopg's `sql` for PostgreSQL, `lake/names.py` for Spark.
A name may hold anything, the end of a line too; what is pasted is always one line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def shell(text: str) -> str:
    """One word for a shell, quoted whether or not it needs it."""
    if text.isprintable():
        return shlex.quote(text) if "'" in text else f"'{text}'"
    return "$'" + _escaped(text, "\\'", lambda char: "".join(f"\\{byte:03o}" for byte in char.encode())) + "'"


def identifier(*names: str) -> str:
    """A name for PostgreSQL, quoted whether or not it needs it."""
    return ".".join(_unicode('"', name) for name in names)


def plain(name: str) -> str:
    """A name in double quotes with every character as it is: for what we send, not for what people paste."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string for PostgreSQL, with standard_conforming_strings as it is by default."""
    return _unicode("'", text)


def _unicode(quote: str, text: str) -> str:
    if text.isprintable():
        return quote + text.replace(quote, quote * 2) + quote
    inner = _escaped(text, "\\", lambda char: f"\\+{ord(char):06x}").replace(quote, quote * 2)
    return f"U&{quote}{inner}{quote}"


def regclass(*names: str) -> str:
    """A string for PostgreSQL that its regclass type reads as a name."""
    return literal(".".join(map(plain, names)))


def dollar_quoted(body: str) -> str:
    """The body of DO, between marks that it does not have itself."""
    mark, number = "$$", 0
    while mark in body:
        number += 1
        mark = f"$body{number}$"
    return f"{mark} {body} {mark}"


def toml(text: str) -> str:
    """A string for TOML, also as a key; literal where it can be, so that names in double quotes stay readable."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(text: str) -> str:
    """A key for TOML, bare where it can be."""
    return text if _BARE_KEY.fullmatch(text) else toml(text)


def _escaped(text: str, special: str, code: Callable[[str], str]) -> str:
    """A text with codes for what can't be printed; `special` characters get a backslash."""
    return "".join("\\" + char if char in special else char if char.isprintable() else code(char) for char in text)
