"""Several hosts in a connection string: one attempt each, as libpq does it."""

from __future__ import annotations

import pytest

from wal2lake.source.sessions.hosts import attempts, writable


@pytest.fixture(autouse=True)
def no_hosts_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGTARGETSESSIONATTRS", "PGLOADBALANCEHOSTS"):
        monkeypatch.delenv(name, raising=False)


def test_one_host_is_one_attempt_and_says_nothing_of_its_session() -> None:
    given = {"host": "a", "port": "1", "dbname": "d"}
    assert attempts(given) == [given] and writable(given) == {}
    assert attempts({}) == [{}]


def test_hosts_have_ports_of_their_own_or_one_for_all() -> None:
    assert attempts({"host": "a,b", "port": "1,2"}) == [{"host": "a", "port": "1"}, {"host": "b", "port": "2"}]
    assert attempts({"host": "a,b", "port": "1"}) == [{"host": "a", "port": "1"}, {"host": "b", "port": "1"}]
    assert attempts({"host": "a,b"}) == [{"host": "a"}, {"host": "b"}]


def test_addresses_belong_to_their_hosts() -> None:
    found = attempts({"host": "a,b", "hostaddr": "10.0.0.1,10.0.0.2", "port": "1,"})
    assert found == [{"host": "a", "hostaddr": "10.0.0.1", "port": "1"}, {"host": "b", "hostaddr": "10.0.0.2"}]


def test_hosts_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    assert attempts({"dbname": "d"}) == [{"dbname": "d", "host": "a"}, {"dbname": "d", "host": "b"}]


def test_of_several_hosts_the_primary_is_meant_unless_something_else_is_said() -> None:
    assert writable({"host": "a,b"}) == {"target_session_attrs": "primary"}
    assert writable({"host": "a,b", "target_session_attrs": "any"}) == {}
