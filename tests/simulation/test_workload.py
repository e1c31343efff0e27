"""The workloads: what they do at the source is what a server takes, or refuses."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from simulation.postgres import ScriptedPostgres
from simulation.postgres_tables import Blocked
from simulation.workload import Life

if TYPE_CHECKING:
    from simulation.world import World


def test_only_a_table_with_the_columns_of_the_root_is_attached() -> None:
    """Another one was taken where none had them, and its texts for the numbers that bounds are made of."""
    server, life = ScriptedPostgres(), Life(1)
    life.chance = random.Random(1)

    def attach() -> object:
        transaction = server.begin()
        try:
            return life._attach(transaction)
        finally:
            transaction.rollback()

    server.run(lambda tx: tx.ddl.create_table("p", {"n": "int4", "v": "text"}, ["n"], partition_by="n"))
    server.run(lambda tx: tx.ddl.create_table("t", {"k": "int4", "n": "text"}, ["k"]))
    server.run(lambda tx: tx.insert("t", k="1", n="a text"))
    assert all(attach() is None for _ in range(20))
    server.run(lambda tx: tx.ddl.create_table("s", {"v": "text", "n": "int4"}, ["n"]))
    server.run(lambda tx: tx.insert("s", v="a text", n="7"))
    assert str(attach()).startswith("ALTER TABLE p ATTACH PARTITION s FOR VALUES FROM (6)")


def test_tables_are_made_where_all_were_dropped() -> None:
    """It looked for one to rename or drop."""
    server = ScriptedPostgres()
    for seed in range(20):
        Life(seed).step(cast("World", SimpleNamespace(server=server)))
        for table in list(server.state.tables.values()):
            server.run(lambda tx, name=str(table.id): tx.ddl.drop_table(name))  # type: ignore[misc]  # mypy knows no types of defaults
    Life(195).step(cast("World", SimpleNamespace(server=server)))


def test_two_sessions_do_not_attach_to_a_table_at_once() -> None:
    """Both did, and a row fitted two partitions."""
    server = ScriptedPostgres()
    server.run(lambda tx: tx.ddl.create_table("p", {"k": "int4"}, ["k"], partition_by="k"))
    for name in ("s", "t"):
        server.run(lambda tx, name=name: tx.ddl.create_table(name, {"k": "int4"}, ["k"]))  # type: ignore[misc]  # mypy knows no types of defaults
    one, other = server.begin(), server.begin()
    one.ddl.attach("p", "s", 0, 6)
    other.insert("t", k="3")
    with pytest.raises(Blocked):
        other.ddl.attach("p", "t", 0, 6)
