"""The output plugins of a server: which of them may be used, and what they know."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psycopg

from ...decode import plugin_options
from ...quoting import literal
from ..sessions.connect import Connection, explained

_TRIAL_TIMEOUT = "SET LOCAL statement_timeout = '2s'"


@dataclass(frozen=True)
class PluginTrial:
    """A plugin as the server has it."""

    plugin: str
    encoding: str
    """of the database"""
    trust: str | None = None
    """the statement that makes it a trusted one, where it is none"""
    missing: str | None = None
    """what to do where the server does not have it"""
    refused: str | None = None
    """why it could not be tried"""
    exact: bool = True
    """whether it knows all that it may be asked for"""


def trusted(conn: Connection, plugin: str) -> str | None:
    """What makes an output plugin a trusted one; None if it is, or the server's version has no list of them."""
    with explained("reading", "the trusted output plugins"):
        row = conn.execute("SELECT current_setting('output_plugin_libraries', true)").fetchone()
    listed = row[0] if row is not None else None
    if listed is None or plugin in (name.strip().strip('"') for name in listed.split(",")):
        return None
    names = ", ".join(filter(None, [listed, plugin]))
    return f"ALTER SYSTEM SET output_plugin_libraries = {literal(names)}; SELECT pg_reload_conf();"


def install(plugin: str, server_version: int) -> str:
    """What to do on a server that does not have an output plugin."""
    major = server_version // 10000
    package = f"postgresql-{major}-wal2json" if plugin == "wal2json" else f"postgresql-{major}"
    return f"on the server: apt-get install {package} -- or, with what every server has: [source] plugin = 'pgoutput'"


def try_plugin(conn: Connection, plugin: str, slot: str) -> PluginTrial:
    """Try it with a slot that is gone afterwards. It is not waited for transactions that are open for long."""
    trial = PluginTrial(plugin, conn.info.parameter_status("server_encoding") or "unknown", trust=trusted(conn, plugin))
    if trial.trust is not None:
        return trial
    try:
        exact = _knows(conn, plugin, slot, exact=True)
        if exact or _knows(conn, plugin, slot, exact=False):
            return replace(trial, exact=exact)
        return replace(trial, refused="it does not know the options that it is asked for: it is too old")
    except psycopg.errors.UndefinedFile:
        return replace(trial, missing=install(plugin, conn.info.server_version))
    except psycopg.Error as error:
        return replace(trial, refused=str(error).splitlines()[0])


def _knows(conn: Connection, plugin: str, slot: str, exact: bool) -> bool:
    """Whether the plugin takes its options. An error ends a temporary slot, too."""
    with conn.transaction():
        conn.execute(_TRIAL_TIMEOUT)
        conn.execute("SELECT pg_create_logical_replication_slot(%s, %s, true)", (slot, plugin))
    pairs = [text for pair in plugin_options(plugin, exact).items() for text in pair]
    try:
        conn.execute(
            "SELECT count(*) FROM pg_logical_slot_peek_changes(%s, NULL, 1, VARIADIC %s::text[])", (slot, pairs)
        )
    except psycopg.errors.InvalidParameterValue:
        return False
    conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    return True
