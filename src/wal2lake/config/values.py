"""Checks of single values of the configuration: each returns the value, or refuses it with what is allowed."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, SecretStr
from pydantic_core import PydanticCustomError

from ..schema import TableId
from ..types import Kind, LakeType, Masking
from .dsn import dsn_is_valid

TABLE_NAMES = 'schema.table, each part in double quotes where it holds a dot, a space or a quote: "My Schema"."a.b"'
_LAKE_TYPES = ", ".join(k if k is not Kind.DECIMAL else "decimal(p,s)" for k in Kind) + ", or list<...> of one"


def refuse(cause: str, allowed: str) -> PydanticCustomError:
    """An error with cause and allowed values. Neither may hold a secret."""
    return PydanticCustomError("refused", "{cause}", {"cause": cause, "allowed": allowed})


def _dsn(value: SecretStr) -> SecretStr:
    if not dsn_is_valid(value.get_secret_value()):
        raise refuse(
            "not a PostgreSQL connection string",
            "postgresql://user:password@host:5432/database (other than plain characters percent-encoded), "
            "or: host=... port=... dbname=... user=... password=...",
        )
    return value


Dsn = Annotated[SecretStr, AfterValidator(_dsn)]


def as_directory(value: str) -> str:
    scheme, separator, _ = value.partition("://")
    if not separator:
        if not value.strip():
            raise refuse("is empty", "a directory, as in: path = './lake'")
        return value
    url = urlsplit(value)
    if scheme.lower() != "file" or url.netloc not in ("", "localhost"):
        raise refuse(
            f"{scheme}:// is not supported, this version writes to directories only",
            "a directory, as in: path = './lake' (on a network file system only with a [lake.catalog])",
        )
    return unquote(url.path)


def _table_name(value: str) -> str:
    try:
        if all(vars(TableId.parse(value)).values()):
            return value
    except ValueError:
        pass
    raise refuse(f"{value!r} is not a table name", TABLE_NAMES)


TableName = Annotated[str, AfterValidator(_table_name)]


def as_lake_type(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return LakeType.parse(value)
    except ValueError:
        raise refuse(f"{value!r} is not a lake type", f"one of: {_LAKE_TYPES}") from None


def as_mask(value: Any) -> Any:
    if isinstance(value, str) and value in list(Masking):
        return Masking(value)
    raise refuse(f"{value!r} is not a mask" if isinstance(value, str) else "is not a mask", "one of: 'sha256', 'null'")


def require_text(value: str) -> str:
    if not value.strip():
        raise refuse("is empty", "a condition in PostgreSQL's SQL, as in: where = \"status <> 'draft'\"")
    return value


def require_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or len(set(value)) < len(value):
        cause = "names a column twice" if value else "is empty"
        raise refuse(cause, "the columns to mirror, those of the key included; or leave it out")
    return value
