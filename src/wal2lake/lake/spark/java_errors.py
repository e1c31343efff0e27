"""Turns exceptions of Spark into errors of wal2lake.

Only class names and SQL states are used. Texts of Java exceptions contain row values and stack traces, so they stay in
the chained cause, which only --debug shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import (
    CommitFailed,
    CommitUnknown,
    CopyFailed,
    LakeError,
    LakeInconsistent,
    LakeUnwritable,
    SparkLost,
    Wal2LakeError,
)
from ...schema import TableId
from ..format import FailureKind

KindOf = Callable[[Sequence[str]], FailureKind | None]
"""classifies the class names of a chain of exceptions for a table format"""
INCONSISTENT = "wal2lake-inconsistent"
"""message that our own expressions raise when the lake table lacks a row that the changes refer to"""


@dataclass(frozen=True)
class Link:
    """One exception in a chain of causes."""

    name: str
    sqlstate: str | None = None
    full: bool = False
    """no space, or no permission"""
    inconsistent: bool = False


def chain(error: BaseException) -> tuple[Link, ...]:
    """The Java exceptions behind an error of PySpark or Py4J, outermost first; empty if there are none."""
    return tuple(_links(_java(error)))


def inconsistent(error: BaseException) -> bool:
    """Whether it was raised by one of our own expressions."""
    return any(link.inconsistent for link in chain(error))


def _java(error: BaseException) -> Any:
    from pyspark.errors.exceptions.captured import CapturedException

    if isinstance(error, CapturedException):
        return error._origin
    return getattr(error, "java_exception", None)


def _links(java: Any) -> Iterator[Link]:
    from py4j.protocol import Py4JError

    seen = 0
    try:
        while java is not None and seen < 20:
            name = str(java.getClass().getName())
            text = str(java.getMessage() or "")
            state = java.getSQLState() if name.startswith("org.postgresql.") else None
            full = any(word in text for word in ("No space left", "Permission denied", "Read-only", "Mkdirs failed"))
            yield Link(name, state, full, INCONSISTENT in text)
            java, seen = java.getCause(), seen + 1
    except (Py4JError, OSError):
        return  # the JVM has died; the chain read so far must do


def _gateway_errors() -> tuple[type[BaseException], ...]:
    from py4j.protocol import Py4JNetworkError

    return (Py4JNetworkError, ConnectionError)


def _has(links: tuple[Link, ...], *names: str) -> bool:
    return any(link.name in names for link in links)


def lake_failure(  # noqa: PLR0911 - a table of cases
    error: BaseException, table: TableId | str, operation: str, path: str, kind_of: KindOf
) -> Wal2LakeError:
    """Our error for a failed operation on a lake table."""
    if isinstance(error, Wal2LakeError):
        return error
    links = chain(error)
    if not links and isinstance(error, _gateway_errors()):
        return SparkLost(cause=f"it does not answer while {operation} {table}")
    kind = kind_of([link.name for link in links])
    if kind is FailureKind.COMMIT_UNKNOWN:
        return CommitUnknown(table=str(table), cause="the catalog did not answer")
    if any(link.inconsistent for link in links):
        return LakeInconsistent(operation=operation, table=str(table))
    if kind is FailureKind.COMMIT_FAILED:
        return CommitFailed(table=str(table), cause="another writer changed the table at the same time")
    if any(link.full for link in links):
        return LakeUnwritable(path=path, cause="no permission or no space")
    if _has(links, "java.lang.OutOfMemoryError"):
        return LakeError(
            operation=operation, cause="Spark ran out of memory",
            remedy="give it more, as in: [spark] conf = { 'spark.driver.memory' = '4g' }",
        )  # fmt: skip
    if kind is FailureKind.CATALOG:
        return LakeError(operation=operation, cause=f"the catalog of the lake at {path} could not be read or written")
    return LakeError(operation=f"{operation} {table}", cause=_kind(error, links))


def copy_failure(error: BaseException, table: TableId, path: str, kind_of: KindOf) -> Wal2LakeError:
    """Our error for a failed initial copy; `unfit=True` if a value does not fit its lake type."""
    if isinstance(error, Wal2LakeError):
        return error
    links = chain(error)
    state = next((link.sqlstate for link in links if link.sqlstate), None)
    if state is not None or _unfit(links):
        return CopyFailed(table=str(table), cause=_source_cause(state), sqlstate=state, unfit=_unfit(links))
    failure = lake_failure(error, table, "copying", path, kind_of)
    if type(failure) is LakeError and "remedy" not in failure.fields:
        return CopyFailed(table=str(table), cause=failure.fields["cause"], sqlstate=None, unfit=False)
    return failure


def _unfit(links: tuple[Link, ...]) -> bool:
    # 22P02: the guard of a date or number; 22003: NaN as a BigDecimal; the rest: a value refused by Spark.
    return any(
        link.sqlstate in ("22P02", "22003", "22008")
        or link.name.endswith(("BadRecordException", "SparkNumberFormatException", "SparkDateTimeException"))
        or link.name.endswith(("SparkArithmeticException", "JsonParseException", "SparkRuntimeException"))
        or link.name == "java.lang.NumberFormatException"
        for link in links
    )


def _source_cause(state: str | None) -> str:
    if state is None or state in ("22P02", "22003", "22008"):
        return "a value does not fit its lake type"
    if state.startswith(("08", "57")):
        return "the connection to PostgreSQL was lost"
    if state == "42501":
        return "PostgreSQL refused to let the table be read (permission denied)"
    if state in ("22023", "55000", "42704"):
        return "the exported snapshot does not exist any more"
    return f"PostgreSQL answered with an error (SQLSTATE {state})"


def _kind(error: BaseException, links: tuple[Link, ...]) -> str:
    name = links[-1].name.rpartition(".")[2] if links else type(error).__name__
    return f"Spark reports {name}"
