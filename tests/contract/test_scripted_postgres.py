"""The scripted PostgreSQL against a real one: the same random histories give the same streams and catalogs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from change_sources import RealServer, ScriptedServer, Server, Session, decoded, everything
from servers import Database, server_major
from simulation.statements import SETUP, random_history
from wal2lake.position import Lsn

SEEDS = range(12)
STEPS = 250


def portrait(server: Server) -> dict[str, object]:
    """What the catalog says of each table, without numbers that differ between servers."""
    catalog, oids = server.catalog(), server.oids()
    names = {oid: name for name, oid in oids.items()}
    try:
        schemas = catalog.describe(list(oids.values()))
        tables = catalog.tables(list(oids.values()))
        return {
            names[oid]: (
                schema.id, schema.columns, schema.key, schema.identity, schema.partitioned, bool(schema.key_index),
                schema.catalog_key, schema.settings_from, tables[oid].attributes,
                # Whether a partition is known to have been made as one is judged by how a real catalog looks.
                sorted((names[heap.oid], *(names[level.oid] for level in heap.levels)) for heap in schema.heaps),
                [catalog.partition_bounds(heap.oid)[0] for heap in schema.heaps] if schema.partitioned else None,
            )
            for oid, schema in schemas.items()
        }  # fmt: skip
    finally:
        catalog.close()


def contents(database: Database, names: Mapping[str, int]) -> dict[str, Counter[tuple[str | None, ...]]]:
    found = {}
    for name in names:
        columns = database.rows(
            "SELECT quote_ident(attname) || '::text' FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum",
            [name],
        )
        found[name] = Counter(database.rows(f"SELECT {', '.join(column for (column,) in columns)} FROM {name}"))
    return found


@pytest.mark.skipif(server_major() < 15, reason="the model sends no transactions without changes")
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_history_gives_the_same_stream_rows_and_catalog(database: Database, seed: int) -> None:
    real = RealServer(database)
    real.run(*SETUP)
    sessions: dict[int, Session] = {}
    open: set[int] = set()
    scripted, starts = ScriptedServer(), dict[str, Lsn]()
    for number, (step, model) in enumerate(random_history(seed, STEPS)):
        if number == 0:
            scripted = ScriptedServer(model)
            starts = {"real": real.create_slot(), "scripted": scripted.create_slot()}
            continue
        session = sessions.setdefault(step.session, real.session()) if step.session not in sessions else sessions[
            step.session
        ]  # fmt: skip
        if step.statement is not None:
            open.add(step.session)
            session.execute(step.statement)
            continue
        open.discard(step.session)
        session.commit() if step.commits else session.rollback()
        if not open:
            assert portrait(scripted) == portrait(real)
    assert decoded(everything(scripted, starts["scripted"])) == decoded(everything(real, starts["real"]))
    assert {name: scripted.model.contents(name) for name in scripted.oids()} == contents(database, real.oids())
