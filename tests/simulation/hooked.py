"""Objects behind a hook: it is called before and after each call of theirs, and may wait, raise, or end the process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Call(NamedTuple):
    """A call of a port, before or after it did its work."""

    port: str
    """source, stream, control, catalog, log, lake, state"""
    method: str
    number: int
    """counted over all ports from 0, before and after a call each"""
    process: str
    """who calls: `main-1`, `main-1/capture-default-1`, a command"""
    done: bool
    subject: str = ""
    """what it is about, as far as the port says: a table, an object of the log"""


Hook = Callable[[Call], object]
"""What it raises is what the call fails with; after the work was done, that is lost on the caller alone."""
Around = Callable[[str, str], Any]
"""Given a port and a method, a context manager for the work of one call."""


class Hooked:
    """Passes calls on to an object, each within `around`. Methods that return contexts are calls when entered."""

    def __init__(
        self, target: object, port: str, around: Around, contexts: Collection[str] = (), plain: Collection[str] = ()
    ) -> None:  # fmt: skip
        """`plain`: methods that reach no server."""
        self._target, self._port, self._around = target, port, around
        self._contexts, self._plain = contexts, plain

    def __enter__(self) -> Hooked:
        return self

    def __exit__(self, *_: object) -> None:
        self._target.close()  # type: ignore[attr-defined]  # whatever is entered can be closed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in self._plain or not callable(found):
            return found
        made = self._context(name, found) if name in self._contexts else self._call(name, found)
        # Methods are looked up once.
        self.__dict__[name] = made
        return made

    def _call(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            made = None
            try:
                with self._around(self._port, name):
                    made = method(*args, **kwargs)
                    return made
            except Exception:
                close_lost(made)
                raise

        return call

    def _context(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def enter(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with self._around(self._port, name):
                context = method(*args, **kwargs)
                entered = context.__enter__()
            try:
                yield entered
            except BaseException as error:
                if not context.__exit__(type(error), error, error.__traceback__):
                    raise
            else:
                context.__exit__(None, None, None)

        return enter


def hooked(
    kind: type[T], target: object, port: str, around: Around, contexts: Collection[str] = (), plain: Collection[str] = ()
) -> T:  # fmt: skip
    """The same as the protocol that the target has."""
    return cast("T", Hooked(target, port, around, contexts, plain))


def close_lost(made: object) -> None:
    """Nobody has what a call has opened whose answer was lost: its connection has ended."""
    if hasattr(made, "close"):
        made.close()
