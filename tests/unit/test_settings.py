"""Origins of settings, and that no secret is shown."""

from __future__ import annotations

import json
from typing import Any

from wal2lake.config import Config, GroupConfig
from wal2lake.config.effective import MASK, settings

FILE: dict[str, Any] = {
    "source": {"dsn": "postgresql://u:hush@db/x"},
    "lake": {"catalog": {"type": "rest", "credential": "hush", "uri": "http://c"}},
    "groups": [{"name": "a", "tables": ["public.*"]}],
    "tables": {"public.t": {"target": "x.y"}},
}


def shown(environment: tuple[str, ...] = (), stored: tuple[GroupConfig, ...] = ()) -> dict[str, tuple[object, str]]:
    config = Config(**FILE)
    found = settings(config, FILE, environment, stored)
    assert "hush" not in json.dumps([vars(each) for each in found])
    return {each.key: (each.value, each.origin) for each in found}


def test_each_value_says_where_it_comes_from() -> None:
    found = shown(("WAL2LAKE_SPARK__MASTER", "WAL2LAKE_LAKE__PROPERTIES__X"))
    assert found["source.dsn"] == (MASK, "file")
    assert found["source.streaming"] == (True, "default")
    assert found["spark.master"][1] == "environment (WAL2LAKE_SPARK__MASTER)"
    assert found["lake.properties"][1] == "environment (WAL2LAKE_LAKE__PROPERTIES__X)"
    assert found["groups.a.tables"] == (["public.*"], "file")
    assert found["groups.a.flush_interval"] == (1.0, "default")
    assert found['tables."public.t".target'] == ("x.y", "file")


def test_groups_of_the_state_store_are_distinguished() -> None:
    found = shown(stored=(GroupConfig(name="b", tables=("s.*",), flush_interval=3.0),))
    assert found["groups.b.tables"] == (["s.*"], "state store")
    assert found["groups.b.flush_interval"] == (3.0, "state store")
    assert found["groups.b.flush_bytes"][1] == "default"


def test_what_looks_like_a_secret_is_masked() -> None:
    catalog = shown()["lake.catalog"][0]
    assert catalog == {"type": "rest", "credential": MASK, "uri": "http://c"}
