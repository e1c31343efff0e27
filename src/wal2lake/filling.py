"""Templates of messages and remedies, filled with fields."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from . import quoting


def filled(template: str, fields: Mapping[str, Any]) -> str:
    """One line of text. `{table:shell}`, `{table:toml}`, `{column:toml_key}` are quoted for pasting."""
    # Line breaks of the template are removed; a field keeps its spaces, and only its line breaks are replaced.
    return one_line(_Filling().vformat(" ".join(template.split()), (), fields))


def one_line(text: str) -> str:
    return " ".join(text.splitlines())


class _Filling(string.Formatter):
    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002 - the base's
        return kwargs.get(str(key), "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        return str(getattr(quoting, format_spec)(str(value)) if format_spec else value)
