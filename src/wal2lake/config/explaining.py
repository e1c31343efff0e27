"""Messages for configuration errors: the field, its value, the allowed values. Secrets are never shown."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ..errors import ConfigError
from .sections import NOT_YET, PLAIN_SECTIONS, SECTIONS

ENV_PREFIX = "WAL2LAKE_"
ENV_DELIMITER = "__"
# Variables with the prefix that are not configuration: the jar cache, and those of the tests.
_OTHER_VARIABLES = ("WAL2LAKE_CACHE", "WAL2LAKE_FAULT", "WAL2LAKE_TEST_")


def variables() -> Iterator[str]:
    """The environment variables that are read. `groups` and `tables` are JSON."""
    for section in PLAIN_SECTIONS:
        for key in SECTIONS[section].model_fields:
            yield f"{ENV_PREFIX}{section}{ENV_DELIMITER}{key}".upper()
    yield from (f"{ENV_PREFIX}{name}".upper() for name in SECTIONS if name not in PLAIN_SECTIONS)


def refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = list(variables())
    maps = tuple(
        f"{ENV_PREFIX}{section}{ENV_DELIMITER}{key}{ENV_DELIMITER}".upper()
        for section in PLAIN_SECTIONS
        for key, field in SECTIONS[section].model_fields.items()
        if get_origin(field.annotation) is dict
    )
    for name in sorted(environment):
        upper = name.upper()
        if not upper.startswith(ENV_PREFIX) or upper.startswith(_OTHER_VARIABLES):
            continue
        if upper not in known and not upper.startswith(maps):
            nearest = difflib.get_close_matches(upper, known, n=1)
            hint = f"perhaps {nearest[0]} is meant" if nearest else f"known are: {', '.join(known)}"
            raise ConfigError(field=name, cause="unknown environment variable", allowed=f"unset it; {hint}")


def explain_variable(text: str) -> ConfigError:
    section = next((name for name in SECTIONS if f'"{name}"' in text), "")
    return ConfigError(
        field=f"{ENV_PREFIX}{section.upper()}",
        cause="its value (or that of a variable below it) is not valid JSON",
        allowed='lists and tables are given as JSON, as in: WAL2LAKE_GROUPS=\'[{"name": "default"}]\'',
    )


def explain(error: ErrorDetails) -> ConfigError:
    location = error["loc"]
    field, context = _dotted(location), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            section = SECTIONS.get(str(location[0])) if len(location) > 1 else None
            known = sorted(SECTIONS if section is None else section.model_fields)
            nearest = difflib.get_close_matches(str(location[-1]), known, n=1)
            hint = f"perhaps {nearest[0]} is meant; " if nearest else ""
            return ConfigError(field=field, cause="unknown key", allowed=f"{hint}the keys here are: {', '.join(known)}")
        case "missing":
            where = "set it in the configuration file (write one with: wal2lake init)"
            variable = f"{ENV_PREFIX}{ENV_DELIMITER.join(map(str, location))}".upper()
            if location == ("source",):
                field, variable = "source.dsn", f"{variable}{ENV_DELIMITER}DSN"
            also = f" or as {variable}" if variable in variables() else ""
            return ConfigError(field=field, cause="is missing", allowed=where + also)
        case "refused":
            return ConfigError(field=field, cause=context["cause"], allowed=context["allowed"])
        case _:
            given = _shown(location, error["input"])
            allowed = "[[groups]]" if location == ("groups",) else _allowed(error["type"], context)
            return ConfigError(field=field, cause=f"bad value{given}", allowed=allowed)


_KINDS_OF_VALUE = {
    "string_type": "a string, in quotes",
    "string_pattern_mismatch": "lower-case letters, digits and underscores, beginning with a letter, at most 40",
    "tuple_type": 'a list, as in: ["public.orders", "public.c*"]',
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


def _allowed(type: str, context: Mapping[str, Any]) -> str:
    match type:
        case "literal_error":
            words = str(context["expected"]).replace(" or ", ", ").split(", ")
            return f"one of: {', '.join(word for word in words if word.strip(chr(39)) not in NOT_YET)}"
        case "greater_than":
            return f"a number above {context['gt']:g}"
        case "greater_than_equal":
            return f"a number of at least {context['ge']:g}"
        case _:
            return _KINDS_OF_VALUE.get(type, "a table of keys and values; see an example with: wal2lake init")


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]":
            name = part if part.replace("_", "a").replace("-", "a").isalnum() else f'"{part}"'
            text += f".{name}" if text else name
    return text


def _shown(location: tuple[int | str, ...], given: Any) -> str:
    """The value, if it is known to be no secret: a number or a word under a known key."""
    field = _field_at(location)
    if field is None or SecretStr in (field.annotation, *get_args(field.annotation)):
        return ""
    return f" {given!r:.80}" if isinstance(given, str | int | float | bool) else ""


def _field_at(location: tuple[int | str, ...]) -> FieldInfo | None:
    names = [part for part in location if isinstance(part, str)]
    if len(names) != 2 or names[0] == "tables":
        return None
    return SECTIONS[names[0]].model_fields.get(names[1]) if names[0] in SECTIONS else None
