"""The one definition of a PostgreSQL session: the settings of copies, streams, ordinary sessions and the state store.

A value's text, a filter's meaning and the time that a statement may take must not depend on what the role, the
database or the environment has set. `options` of the startup packet are not enough: libpq sends PGTZ and PGDATESTYLE
after them, and a pooler may drop them. So what a session has is read after connecting, and set where it differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ..quoting import literal

SETTINGS: Mapping[str, str] = MappingProxyType({
    # What reaches the text of a value.
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
    # What a statement means, and which rows it sees.
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "row_security": "off",
    "gin_fuzzy_search_limit": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    # A warning may say that changes were skipped.
    "client_min_messages": "notice",
    # A copy may take as long as it takes; waits are limited where they begin.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    # Compiling queries that only read takes longer than it saves.
    "jit": "off",
})  # fmt: skip
"""as SHOW writes them; what a server does not know is left out"""

_NOT_BEFORE = {"transaction_timeout": 170000}
"""server versions that have a setting; an unknown one in the startup packet ends the connection"""


def _listed(names: Iterable[str]) -> str:
    pairs = ", ".join(f"({literal(name)}, {literal(SETTINGS[name])})" for name in names)
    return f"(VALUES {pairs}) AS s (name, value) WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL"


SHOW = f"SELECT s.name, pg_catalog.current_setting(s.name) FROM {_listed(SETTINGS)}"  # noqa: S608 - constants


def setting(names: Iterable[str]) -> str:
    """The statement that sets some of them."""
    return f"SELECT pg_catalog.set_config(s.name, s.value, false) FROM {_listed(names)}"  # noqa: S608 - constants


COPY_LOCK_TIMEOUT = "2s"
"""The table of a copy is locked by the session that holds its snapshot. Its readers find a lock in their way only where
somebody waits to alter the table, behind that session: were they to wait, too, nobody would ever go on."""
SET_FOR_COPY = f"{setting(SETTINGS)}; SET lock_timeout = '{COPY_LOCK_TIMEOUT}'"


def differing(shown: Iterable[Sequence[str]]) -> dict[str, str]:
    """Of the rows of SHOW: the settings that a session has otherwise, with what it has."""
    return {name: value for name, value in shown if value != SETTINGS[name]}


def startup_options() -> str:
    """The settings for the startup packet, as far as every supported server knows them."""
    told = ((name, value) for name, value in SETTINGS.items() if name not in _NOT_BEFORE)
    return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in told)


def copy_options() -> str:
    """The same for the readers of a copy."""
    return f"{startup_options()} -c lock_timeout={COPY_LOCK_TIMEOUT}"
