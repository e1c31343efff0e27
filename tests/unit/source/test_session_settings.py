"""Settings of a session: differing ones are set, and a session that refuses them is an error."""

from __future__ import annotations

import pytest

from wal2lake.errors import SourceRefused
from wal2lake.source.sessions import session
from wal2lake.source.sessions.connect import _pin, connection_failed


class Server:
    """Answers SHOW; takes settings or, like a pooler between statements, does not."""

    def __init__(self, takes: bool) -> None:
        self.has = {**session.SETTINGS, "DateStyle": "German, DMY"}
        self.takes = takes

    def ask(self, statement: str) -> list[tuple[str, str]]:
        if statement == session.SHOW:
            return list(self.has.items())
        assert statement == session.setting(["DateStyle"])
        if self.takes:
            self.has["DateStyle"] = session.SETTINGS["DateStyle"]
        return []


def test_a_setting_that_differs_is_set() -> None:
    server = Server(takes=True)
    _pin(server.ask)
    assert server.has == session.SETTINGS


def test_a_session_that_keeps_another_setting_is_refused_with_both_values() -> None:
    with pytest.raises(SourceRefused) as raised:
        _pin(Server(takes=False).ask)
    assert "DateStyle = 'ISO, MDY'" in str(raised.value) and "'German, DMY'" in str(raised.value)
    assert "pool_mode" in raised.value.remedy


def test_blanks_in_startup_options_are_escaped() -> None:
    assert r"-c DateStyle=ISO,\ MDY" in session.startup_options()
    assert "transaction_timeout" not in session.startup_options()


PLACE = 'connection to server at "db" (10.0.0.1), port 5432 failed: '


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("SSL error: certificate verify failed", "sslrootcert"),
        ('root certificate file "/x/root.crt" does not exist\nEither provide the file, or ...', "sslrootcert"),
        ('server certificate for "db.internal" does not match host name "db"', "verify-ca"),
        ("server does not support SSL, but SSL was required", "ssl = on"),
        ('private key file "k" has group or world access', "chmod 600"),
        ("FATAL:  connection requires a valid client certificate", "sslcert"),
        ("SSL error: tlsv1 alert unknown ca", "sslcert"),
        ('FATAL:  invalid value for parameter "TimeZone": "Nowhere"', "PGTZ"),
    ],
)
def test_a_failed_connection_has_the_remedy_for_its_cause(message: str, remedy: str) -> None:
    error = connection_failed("db", PLACE + message)
    assert remedy in error.remedy
    assert message.splitlines()[0].removeprefix("FATAL:  ") in str(error)
