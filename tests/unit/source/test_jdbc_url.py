"""The URL that Spark's JDBC gets."""

from __future__ import annotations

import pytest

from wal2lake.errors import ConfigError
from wal2lake.source.sessions.connect import jdbc_url


@pytest.mark.parametrize("host", ["", "/var/run/postgresql", "@abstract"])
def test_a_unix_socket_is_refused_with_what_to_write_instead(host: str) -> None:
    with pytest.raises(ConfigError) as raised:
        jdbc_url(host, 5432, "shop")
    assert "TCP" in str(raised.value) and "127.0.0.1" in raised.value.remedy


def test_names_and_addresses_are_written_so_that_the_driver_reads_them() -> None:
    assert jdbc_url("db.example", 5432, "shop") == "jdbc:postgresql://db.example:5432/shop"
    assert jdbc_url("::1", 6000, "a shop/ü?") == "jdbc:postgresql://[::1]:6000/a%20shop%2F%C3%BC%3F"
