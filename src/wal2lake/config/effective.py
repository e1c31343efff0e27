"""Each effective setting and its origin: default, file, environment or state store.

Pure: compares what was loaded with what was written. Secrets are masked, also in free-form keys whose name looks like
that of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr

from .explaining import ENV_DELIMITER, ENV_PREFIX
from .loading import Config
from .sections import GroupConfig

MASK = "***"
_SECRET = re.compile(r"password|secret|token|credential|access-?_?key|private", re.IGNORECASE)


@dataclass(frozen=True)
class Setting:
    key: str
    """section.key, as in the file"""
    value: Any
    origin: str
    """default, file, environment (with the variable) or state store"""


def settings(
    config: Config, written: Mapping[str, Any], environment: Collection[str], stored: Collection[GroupConfig] = ()
) -> list[Setting]:
    """Every setting of a configuration that was loaded from a file and the environment, and of stored groups."""
    found: list[Setting] = []
    for section in type(config).model_fields:
        value = getattr(config, section)
        if section == "groups":
            origin = _origin(("groups",), written, environment)
            found += [each for group in value for each in _group(group, written, origin)]
        elif section == "tables":
            for name, table in value.items():
                found += _fields(f'tables."{name}"', table, lambda _: _origin(("tables",), written, environment))
        else:
            found += _fields(section, value, lambda key, s=section: _origin((s, key), written, environment))
    for group in stored:
        found += _fields(f"groups.{group.name}", group, _stored(group))
    return found


def _group(group: GroupConfig, written: Mapping[str, Any], origin: str) -> Iterator[Setting]:
    in_file: Mapping[str, Any] = next(
        (each for each in written.get("groups", []) if each.get("name") == group.name), {}
    )

    def of(key: str) -> str:
        if origin != "file":
            return origin if origin == "default" or key in group.model_fields_set else "default"
        return "file" if key in in_file else "default"

    return _fields(f"groups.{group.name}", group, of)


def _stored(group: GroupConfig) -> Any:
    default = GroupConfig(name=group.name)
    return lambda key: (
        "state store" if key in ("name", "tables", "exclude") or getattr(group, key) != getattr(default, key)
        else "default"
    )  # fmt: skip


def _fields(prefix: str, section: BaseModel, origin: Any) -> Iterator[Setting]:
    for key in type(section).model_fields:
        yield Setting(f"{prefix}.{key}", _shown(key, getattr(section, key)), origin(key))


def _shown(key: str, value: Any) -> Any:
    match value:
        case SecretStr():
            return MASK
        case dict():
            return {str(name): _shown(str(name), each) for name, each in value.items()}
        case list() | tuple():
            return [_shown("", each) for each in value]
        case None | bool() | int() | float() | str():
            return MASK if value and _SECRET.search(key) else value
        case _:
            return str(value)


def _origin(path: tuple[str, ...], written: Mapping[str, Any], environment: Collection[str]) -> str:
    variable = (ENV_PREFIX + ENV_DELIMITER.join(path)).upper()
    for name in environment:
        if name.upper() == variable or name.upper().startswith(variable + ENV_DELIMITER):
            return f"environment ({name})"
        if len(path) > 1 and name.upper() == f"{ENV_PREFIX}{path[0]}".upper():
            return f"environment ({name})"
    place: Any = written
    for part in path:
        if not isinstance(place, Mapping) or part not in place:
            return "default"
        place = place[part]
    return "file"
