"""A hundred tables in five groups under one run, with one driver. WAL2LAKE_TEST_TABLES says how many."""

from __future__ import annotations

from collections import Counter

import pytest
from test_many_tables import make_tables

from command import Project
from oracle import assert_equal_tables
from proof_size import proof_size
from servers import Database
from waiting import wait_until
from wal2lake.position import Lsn

TABLES = proof_size("WAL2LAKE_TEST_TABLES", long=100, short=20)
GROUPS = ("zero", "one", "two", "three", "four")
PATIENCE = 900.0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_groups_share_a_run_and_each_has_its_own_slot(project: Project, database: Database) -> None:
    names = make_tables(database, TABLES)
    groups = "".join(
        f'[[groups]]\nname = "{name}"\ntables = [{", ".join(repr(table) for table in names[number :: len(GROUPS)])}]\n'
        for number, name in enumerate(GROUPS)
    )
    project.configure(database.dsn, groups)
    run = project.start("run")

    def streaming() -> bool:
        assert run.running, run.err
        status = project.watch()
        groups = {group["name"]: group["state"] for group in status["groups"]}
        states = Counter(table["state"] for table in status["tables"])
        return groups == dict.fromkeys(GROUPS, "RUNNING") and states == {"STREAMING": TABLES}

    wait_until(streaming, PATIENCE, lambda: run.err)
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND active AND NOT temporary"
    assert database.value(slots) == len(GROUPS)
    for turn in range(20):
        for name in names:
            database.execute(
                f"INSERT INTO {name} VALUES ({100 + turn}, 'new', {turn}, now());"
                f"UPDATE {name} SET name = 'changed in {turn}' WHERE id % 10 = {turn} % 10;"
                f"DELETE FROM {name} WHERE id = {turn} + 95"
            )
    position = Lsn.parse(database.value("SELECT pg_current_wal_insert_lsn()::text"))
    database.execute("SELECT pg_logical_emit_message(true, 'test', '')")

    def there() -> bool:
        assert run.running, run.err
        tables = project.watch()["tables"]
        return all(table["applied_lsn"] and Lsn.parse(table["applied_lsn"]) >= position for table in tables)

    wait_until(there, PATIENCE, lambda: run.err)
    assert_equal_tables(database, project.lake, names)
