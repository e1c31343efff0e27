"""The commented configuration file that `init` writes, generated from the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from ..config import NOT_YET, SECTIONS

HEADINGS = {"groups": "[[groups]]", "tables": '[tables."public.orders"]'}


@dataclass(frozen=True)
class Option:
    """One key of the configuration."""

    section: str
    key: str
    description: str
    type: str
    required: bool
    default: Any
    example: Any

    @property
    def sample(self) -> str:
        """A value as TOML: the example if there is one."""
        return toml(self.example if self.example is not None else self.default)


def options(section: str) -> Iterator[Option]:
    for key, field in SECTIONS[section].model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield Option(
            section=section, key=key, description=field.description or "", type=_type(field),
            required=field.is_required(), default=default, example=(field.examples or [None])[0],
        )  # fmt: skip


def heading(section: str) -> str:
    return HEADINGS.get(section, f"[{section}]")


def purpose(section: str) -> str:
    return first_line(SECTIONS[section])


def first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def config_file() -> str:
    """The file: required keys are set, all others are commented out, with their default or an example."""
    lines = ["# wal2lake.toml. Each key can also be an environment variable: WAL2LAKE_SOURCE__DSN is [source] dsn."]
    for section in SECTIONS:
        # The heading of [tables] alone would define a table, so it is commented out as well.
        asleep = "# " if section == "tables" else ""
        lines += ["", f"# {purpose(section)}", f"{asleep}{heading(section)}"]
        for option in options(section):
            prefix = "" if option.required else "# "
            lines += [f"# {option.description}", f"{prefix}{option.key} = {option.sample}"]
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}"
        case float():
            return f"{value:g}"
        case dict():
            pairs = ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case tuple() | list():
            return "[" + ", ".join(toml(item) for item in value) + "]"
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    if NoneType in get_args(annotation):
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        return " or ".join(json.dumps(word) for word in get_args(annotation) if word not in NOT_YET)
    if get_origin(annotation) is dict:
        return "table of strings"
    if get_origin(annotation) is tuple:
        return "list of strings"
    if annotation is bool:
        return "true or false"
    if annotation in (float, int):
        return ("number" if annotation is float else "whole number") + _limits(field)
    return "string, secret" if SecretStr in _flat(annotation) else "string"


def _flat(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _flat(part)


def _limits(field: FieldInfo) -> str:
    for limit in field.metadata:
        if (least := getattr(limit, "ge", None)) is not None:
            return f", at least {least:_}" if isinstance(least, int) else f", at least {least:g}"
        if (above := getattr(limit, "gt", None)) is not None:
            return f", above {above:g}"
    return ""
