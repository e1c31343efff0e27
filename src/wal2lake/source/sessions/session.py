"""The settings of PostgreSQL sessions, for copies, streams, ordinary sessions and the state store.

The text of values, the meaning of filters and time-outs must not depend on settings of the role, the database or the
environment. `options` of the startup packet are not enough: libpq sends PGTZ and PGDATESTYLE after them, and a pooler
may drop them. So settings are read after connecting, and set where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ...quoting import literal

SETTINGS: Mapping[str, str] = MappingProxyType({
    # Settings that affect the text of values.
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "xmlbinary": "base64",
    "xmloption": "content",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",
    "client_encoding": "UTF8",
    # Settings that affect the meaning of statements and the visibility of rows.
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "row_security": "off",
    "gin_fuzzy_search_limit": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    # Warnings are needed: one says that changes were skipped.
    "client_min_messages": "notice",
    # Copies have no time limit; waits are limited where they begin.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    # JIT compilation of short queries takes longer than it saves.
    "jit": "off",
})  # fmt: skip
"""as SHOW writes them; settings that a server does not have are left out"""

_NOT_BEFORE = {"transaction_timeout": 170000}
"""server versions that have a setting; an unknown one in the startup packet ends the connection"""


def _listed(names: Iterable[str]) -> str:
    pairs = ", ".join(f"({literal(name)}, {literal(SETTINGS[name])})" for name in names)
    return f"(VALUES {pairs}) AS s (name, value) WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL"


SHOW = f"SELECT s.name, pg_catalog.current_setting(s.name) FROM {_listed(SETTINGS)}"  # noqa: S608 - constants


def setting(names: Iterable[str], within: str = "session") -> str:
    """The statement that applies some settings; `within`: "session" or "transaction"."""
    local = str(within == "transaction").lower()
    return f"SELECT pg_catalog.set_config(s.name, s.value, {local}) FROM {_listed(names)}"  # noqa: S608 - constants


def local(version: int) -> str:
    """Statements that set them for one transaction, and take no snapshot: the isolation level may follow."""
    told = ((name, value) for name, value in SETTINGS.items() if version >= _NOT_BEFORE.get(name, 0))
    return "; ".join(f"SET LOCAL {name} = {literal(value)}" for name, value in told)


COPY_LOCK_TIMEOUT = "2s"
"""A copied table is locked by the session that holds its snapshot. The copy's readers are blocked only by a session
that waits behind that lock to alter the table; if they waited as well, none of the three could continue."""
SET_FOR_COPY = f"{setting(SETTINGS, 'transaction')}; SET LOCAL lock_timeout = '{COPY_LOCK_TIMEOUT}'"
"""in the transaction of the copy alone: behind a pooler, the session is not ours"""


def differing(shown: Iterable[Sequence[str]]) -> dict[str, str]:
    """The settings in the rows of SHOW that differ from ours, with their values."""
    return {name: value for name, value in shown if value != SETTINGS[name]}


def startup_options() -> str:
    """The settings for the startup packet that every supported server knows."""
    told = ((name, value) for name, value in SETTINGS.items() if name not in _NOT_BEFORE)
    return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in told)


def copy_options() -> str:
    """The same for the readers of a copy."""
    return f"{startup_options()} -c lock_timeout={COPY_LOCK_TIMEOUT}"
