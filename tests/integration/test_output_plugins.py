"""Other output plugins give the changes that pgoutput gives, and refuse what they can't tell."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from decoding import KINDS
from plugin_slots import OTHER, PluginSlots, Transaction
from servers import Database, can_declare, require_plugin

_NUMBERS = ("float4", "float8", "numeric")


@pytest.fixture(params=OTHER)
def slots(request: pytest.FixtureRequest, database: Database) -> Iterator[PluginSlots]:
    require_plugin(request.param)
    made = PluginSlots(database, request.param)
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    yield made
    made.close()


def equal(slots: PluginSlots) -> int:
    """Both streams have told the same since they were last read; of how many transactions."""
    wanted, found = slots.histories()
    assert found == wanted
    ours, others = (slots.commits[name] for name in slots.slots)
    if slots.plugin == "wal2json":
        assert others == ours
    else:
        # test_decoding tells the end of a commit record alone: its last byte stands for it.
        assert [end for _, end in others] == [end for _, end in ours]
        assert all(begin < last == end - 1 for (begin, _), (last, end) in zip(ours, others, strict=True))
    return len(wanted)


def _types(database: Database) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('so so', 'NULL')")
    database.execute("CREATE TYPE pair AS (x int, y text)")
    database.execute("CREATE DOMAIN price AS numeric(10,2)")


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if can_declare(kind)])
def test_every_type_by_insert_update_and_delete(slots: PluginSlots, kind: str, identity: str) -> None:
    run = slots.database.execute
    _types(slots.database)
    run(f"CREATE TABLE t (id int PRIMARY KEY, v {kind}, a {kind}[], n {kind})")
    run(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    slots.open()
    nothing = "NULL"
    values = list(KINDS[kind])
    if not slots.exact and kind.startswith(_NUMBERS):
        # These can't be told from NULL there; see the tests below.
        values = [value for value in values if not any(word in value for word in ("NaN", "Infinity"))]
        nothing = f"({values[0]})::{kind}"
    for number, value in enumerate(values):
        cast = f"({value})::{kind}"
        run(f"INSERT INTO t VALUES ({number}, {cast}, ARRAY[{cast}, NULL, {cast}], {nothing})")
    run(f"INSERT INTO t VALUES (-1, {nothing}, '{{}}', {nothing}), (-2, {nothing}, NULL, {nothing})")
    run("UPDATE t SET a = a || a, n = v")
    run("UPDATE t SET id = id + 1000 WHERE id >= 0")
    run("DELETE FROM t WHERE id < 0")
    run("DELETE FROM t")
    assert equal(slots) == len(values) + 5


def test_every_value_that_is_no_number_stops_its_table(slots: PluginSlots) -> None:
    run = slots.database.execute
    run("CREATE TABLE t (id int PRIMARY KEY, f float8, n numeric)")
    run("CREATE TABLE u (id int PRIMARY KEY, a float8[], i int)")
    slots.open()
    for values in ("1, 'NaN', 1", "2, 1, 'Infinity'", "3, '-Infinity', 1", "4, NULL, 1", "5, 1, NULL"):
        run(f"INSERT INTO t VALUES ({values})")
    run("INSERT INTO u VALUES (1, '{NaN,NULL,Infinity}', NULL)")
    if slots.exact:
        assert equal(slots) == 6
        return
    told = slots.told(slots.plugin)
    assert [transaction.changes[0][2] for transaction in told[:-1]] == ["PluginUnfit"] * 5
    assert ("i", "None") in told[-1].changes[0], "arrays and integers are told in full"


NAMES = ["plain", "select", "Mixed", "a b", 'q"u', "d.ot", "col:on", "[br]", "new-tuple", "ünï", "it's", "back\\slash"]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def test_every_name_of_schemas_tables_columns_and_types(slots: PluginSlots) -> None:
    run = slots.database.execute
    tables = []
    for name in NAMES:
        schema, table, kind = (_quoted(one) for one in (f"s {name}", name, f"t {name}"))
        columns = ", ".join(f"{_quoted(one)} text" for one in NAMES)
        run(f"CREATE SCHEMA {schema}")
        run(f"CREATE TYPE {schema}.{kind} AS ENUM ('it''s', ']:', 'new-tuple: ')")
        tables.append(f"{schema}.{table}")
        run(f"CREATE TABLE {tables[-1]} (id int PRIMARY KEY, {columns}, e {schema}.{kind}, es {schema}.{kind}[])")
    slots.open()
    for name, table in zip(NAMES, tables, strict=True):
        text = "' new-tuple: x[text]:''y'' '"
        run(f"INSERT INTO {table} (id, {_quoted(name)}, e, es) VALUES (1, {text}, ']:', '{{it''s}}')")
        run(f"UPDATE {table} SET id = 2, e = 'it''s'")
        run(f"DELETE FROM {table}")
    run(f"TRUNCATE {', '.join(tables)}")
    assert equal(slots) == 3 * len(NAMES) + 1


def test_texts_of_every_shape(slots: PluginSlots) -> None:
    run = slots.database.execute
    run("CREATE TABLE t (id int PRIMARY KEY, v text, w text)")
    slots.open()
    texts = [
        "''",
        "'",
        "null",
        "''''",
        "a\nb\n",
        "\t\\n\r",
        " new-tuple: ",
        "unchanged-toast-datum",
        "😀",
        "\x01\x7f",
        '{"a":1}',
        "",
    ]
    for number, text in enumerate(texts):
        run("INSERT INTO t VALUES (%s, %s, NULL)", (number, text))
        run("UPDATE t SET v = w, w = v, id = id + 100 WHERE id = %s", (number,))
    assert equal(slots) == 2 * len(texts)


def test_toast_that_is_unchanged_changed_and_part_of_the_key(slots: PluginSlots) -> None:
    run = slots.database.execute
    run(
        "CREATE TABLE t (id int PRIMARY KEY, v text STORAGE EXTERNAL, b bytea STORAGE EXTERNAL, n int)".replace(
            " STORAGE EXTERNAL", ""
        )
    )
    run("ALTER TABLE t ALTER v SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL")
    run("CREATE TABLE f (id int, v text, n int)")
    run("ALTER TABLE f ALTER v SET STORAGE EXTERNAL, REPLICA IDENTITY FULL")
    run("CREATE TABLE k (id text PRIMARY KEY, n int)")
    run("ALTER TABLE k ALTER id SET STORAGE EXTERNAL")
    slots.open()
    run("INSERT INTO t VALUES (1, repeat('v', 9000), decode(repeat('00ff', 4000), 'hex'), 1)")
    run("UPDATE t SET n = 2")
    run("UPDATE t SET id = 2")
    run("UPDATE t SET v = repeat('w', 9000)")
    run("INSERT INTO f VALUES (1, repeat('v', 9000), 1), (1, NULL, NULL)")
    run("UPDATE f SET n = 2")
    run("DELETE FROM f")
    run("INSERT INTO k VALUES (repeat('k', 2500), 1)")
    run("UPDATE k SET n = 2")
    run("UPDATE k SET id = 'a'")
    run("UPDATE k SET id = repeat('k', 2500)")
    run("DELETE FROM k")
    assert equal(slots) == 12


def test_identities(slots: PluginSlots) -> None:
    run = slots.database.execute
    run("CREATE TABLE i (a int, b int NOT NULL, c text NOT NULL, d text)")
    run("CREATE UNIQUE INDEX by_bc ON i (c, b)")
    run("ALTER TABLE i REPLICA IDENTITY USING INDEX by_bc")
    run("CREATE TABLE two (b int, a int, v text, PRIMARY KEY (a, b))")
    run("CREATE TABLE whole (a int, b text, c numeric)")
    run("ALTER TABLE whole REPLICA IDENTITY FULL")
    run("CREATE TABLE keyless (a int)")
    slots.open()
    run("INSERT INTO i VALUES (1, 1, 'x', 'd'), (2, 2, 'y', NULL)")
    run("UPDATE i SET d = 'e'")
    run("UPDATE i SET c = c || 'z'")
    run("DELETE FROM i")
    run("INSERT INTO two VALUES (1, 2, 'v')")
    run("UPDATE two SET v = NULL")
    run("UPDATE two SET b = 5")
    run("DELETE FROM two")
    run("INSERT INTO whole VALUES (1, NULL, 1), (1, NULL, 1), (NULL, 'x', 2)")
    run("UPDATE whole SET b = 'y' WHERE a = 1")
    run("DELETE FROM whole")
    run("INSERT INTO keyless VALUES (1)")
    assert equal(slots) == 12


def test_truncates_of_several_tables(slots: PluginSlots) -> None:
    run = slots.database.execute
    run("CREATE TABLE a (id int PRIMARY KEY, n serial)")
    run("CREATE TABLE b (id int PRIMARY KEY REFERENCES a)")
    run("CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    run("CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (9)")
    run("CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (9) TO (99)")
    slots.open()
    run("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO r VALUES (1), (10)")
    run("TRUNCATE a CASCADE")
    run("TRUNCATE a, b, r RESTART IDENTITY")
    run(
        "BEGIN; INSERT INTO a VALUES (2); TRUNCATE b; TRUNCATE r1; INSERT INTO r VALUES (3); TRUNCATE a CASCADE; COMMIT"
    )
    run("UPDATE r SET id = 20")
    assert equal(slots) == 5


def test_sub_transactions_and_transactions_without_a_change(slots: PluginSlots) -> None:
    run = slots.database.execute
    run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run("CREATE UNLOGGED TABLE u (id int)")
    slots.open()
    run(
        "BEGIN; INSERT INTO t VALUES (1); SAVEPOINT a; INSERT INTO t VALUES (2); ROLLBACK TO a; SAVEPOINT b;"
        " INSERT INTO t VALUES (3); RELEASE b; COMMIT"
    )
    run("INSERT INTO u VALUES (1)")
    run("CREATE TABLE later (id int PRIMARY KEY)")
    run("BEGIN; INSERT INTO t VALUES (9); ROLLBACK")
    run("SELECT pg_logical_emit_message(true, 'x', 'table public.t: INSERT:')")
    run("SELECT pg_logical_emit_message(false, 'x', 'BEGIN 7')")
    run("INSERT INTO t VALUES (4)")
    assert equal(slots) == 2


def _make_tables(slots: PluginSlots) -> None:
    run = slots.database.execute
    run("CREATE TABLE k (id int PRIMARY KEY, v text, m int[], e varchar(9))")
    run("ALTER TABLE k ALTER v SET STORAGE EXTERNAL")
    run("CREATE TABLE w (a int, b text, c char(4))")
    run("ALTER TABLE w REPLICA IDENTITY FULL")
    run("CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
    for number in range(4):
        run(f"CREATE TABLE p{number} PARTITION OF p FOR VALUES FROM ({number * 250}) TO ({number * 250 + 250})")


def _write(slots: PluginSlots, chance: random.Random, more: Sequence[str] = ()) -> None:
    """Three writers whose transactions interleave; what waits for another one fails."""
    writers = [slots.database.connect(autocommit=False) for _ in range(3)]
    for writer in writers:
        writer.execute("SET lock_timeout = '50ms'")
        writer.commit()
    for _ in range(60):
        writer = chance.choice(writers)
        statement = chance.choice(more) if more and chance.random() < 0.2 else _statement(chance)
        try:
            writer.execute(statement.encode())
        except psycopg.Error:
            writer.rollback()
            continue
        if chance.random() < 0.3:
            (writer.commit if chance.random() < 0.8 else writer.rollback)()
    for writer in writers:
        writer.commit()
        writer.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_with_tables_altered_between_them(slots: PluginSlots, seed: int) -> None:
    chance = random.Random(seed)
    _make_tables(slots)
    slots.open()
    total = 0
    kinds = ["int", "varchar(7)", "text", *(["numeric(9,3)"] if slots.exact else [])]
    for turn in range(6):
        _write(slots, chance)
        total += equal(slots)
        kind = chance.choice(kinds)
        slots.database.execute(f"ALTER TABLE k ADD COLUMN x{turn} {kind}")
        slots.database.execute(chance.choice(_ALTERATIONS).format(turn=turn))
    assert total > 60


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_with_tables_altered_in_them_are_equal_or_refused(slots: PluginSlots, seed: int) -> None:
    """What can't be told is refused, table by table; the rest is as pgoutput has it."""
    chance = random.Random(100 + seed)
    _make_tables(slots)
    slots.open()
    same = refused = 0
    for turn in range(6):
        altering = [one.format(turn=f"{turn}{number}") for number in range(3) for one in _ALTERATIONS]
        _write(slots, chance, [*altering, "TRUNCATE p2", "TRUNCATE w", "ALTER TABLE k RENAME TO a", "ALTER TABLE w RENAME TO k",
                               "ALTER TABLE a RENAME TO w", "ALTER TABLE k RENAME TO w", "DROP TABLE IF EXISTS p3"])  # fmt: skip
        wanted, found = ({one.end_lsn: one for one in told} for told in slots.histories())
        for end, transaction in wanted.items():
            other = found.get(end)
            if transaction == other:
                same += 1
                continue
            # Who drops a table needs none of its rows, and has renamed it at most.
            assert other is None or _refuses(transaction, other), (transaction, other)
            refused += 1
        assert not found.keys() - wanted.keys()
    assert same > 0 and refused > 0, "the test shows nothing"


def _refuses(wanted: Transaction, found: Transaction) -> bool:
    """Whether each table's changes are the same, or one of them is refused."""
    oids = {oid for oid, *_ in (*wanted.changes, *found.changes)}
    for oid in oids:
        ours, others = ([one for one in told.changes if one[0] == oid] for told in (wanted, found))
        if _essence(ours) != _essence(others) and not any("CopyNeeded" in one for one in others):
            return False
    return True


def _essence(changes: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What does not depend on what else is told: the places in the transaction do, and a delete has its key only."""
    found = []
    for _, _, *values in changes:
        deleted = ("_op", "'D'") in values
        found.append(tuple(one for one in values if one[0] != "_seq" and not (deleted and one[1] == "None")))
    return found


_ALTERATIONS = (
    "ALTER TABLE w REPLICA IDENTITY FULL",
    "ALTER TABLE k ADD COLUMN y{turn} int",
    "GRANT SELECT ON k TO public",
    "ALTER TABLE k ALTER e TYPE text",
    "ALTER TABLE p ADD COLUMN y{turn} varchar(5)",
)


def _statement(chance: random.Random) -> str:
    id, text = chance.randrange(1000), chance.choice(["NULL", "'it''s'", "repeat('z', 5000)", "''", "E'a\\nb'"])
    return chance.choice([
        f"INSERT INTO k (id, v, m) VALUES ({id}, {text}, '{{1,NULL}}') ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v",
        f"UPDATE k SET m = '{{{id}}}' WHERE id > {id}",
        f"UPDATE k SET id = id + 1000 WHERE id < 1000 AND id > {id} AND id < {id} + 20",
        f"DELETE FROM k WHERE id % 10 = {id % 10}",
        f"INSERT INTO w VALUES ({id % 3}, {text}, 'c')",
        f"UPDATE w SET b = {text} WHERE a = {id % 3}",
        f"DELETE FROM w WHERE a = {id % 5}",
        f"INSERT INTO p VALUES ({id}, {text}) ON CONFLICT DO NOTHING",
        f"UPDATE p SET id = {id} WHERE id = (SELECT min(id) FROM p WHERE id > {id})",
        f"DELETE FROM p WHERE id < {id} AND id > {id} - 50",
    ])  # fmt: skip
