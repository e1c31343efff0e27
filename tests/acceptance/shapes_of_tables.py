"""Shapes of tables: names, columns, and rows that arrive, leave or move by other means than plain statements."""

from __future__ import annotations

from shapes import KEYED, Shape, Step, keyed, long_form_only

from capture_modes import MODE

LONG = "l" * 63
TABLE_NAMES = (
    'select', 'Upper', 'upper', 'has "quotes"', 'has.dot', "it's", 'with space', 'back`tick', 'ünï ☃', LONG,
    '_op', 'a/b', '..', '%41', '$tag', '{brace}', 't-1', 'files', 'snapshots', 'history',
)  # fmt: skip
"""reserved words, characters with a meaning to file systems, URLs, Spark or TOML, and names of metadata tables"""
COLUMN_NAMES = (
    'select', 'has "quotes"', 'has.dot', "it's", 'with space', 'back`tick', 'ünï ☃', LONG, '_op', '_seq',
    '_commit_lsn', '_xid', '_old_id', 'ctid2', 'a,b', '$tag', '1st', 'element', 'key', 'Mixed', '%s', '\\',
)  # fmt: skip


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _named_tables() -> Shape:
    make = "; ".join(f"CREATE TABLE {quote(name)} (id int PRIMARY KEY, v text)" for name in TABLE_NAMES)
    mix = [
        f"INSERT INTO {quote(name)} VALUES ({{k}}, {{v}}) ON CONFLICT (id) DO UPDATE SET v = {{v}}"
        for name in TABLE_NAMES
    ]
    mix += [f"DELETE FROM {quote(name)} WHERE id = {{k}}" for name in TABLE_NAMES]
    return Shape('Schema "of" awkward.names', (make,), ("; ".join(mix[: len(TABLE_NAMES)]), *mix))


def _named_columns() -> Shape:
    columns = ", ".join(f"{quote(name)} int" for name in COLUMN_NAMES)
    insert = f"INSERT INTO t SELECT {{k}}, {', '.join('{k}' for _ in COLUMN_NAMES)} ON CONFLICT DO NOTHING"
    changes = [f"UPDATE t SET {quote(name)} = {{k}} WHERE {quote('Id')} = {{k}}" for name in COLUMN_NAMES]
    return Shape(
        "awkward_columns",
        (f'CREATE TABLE t ("Id" int, {columns}, PRIMARY KEY ("Id", {quote(COLUMN_NAMES[1])}))',),
        (insert, insert, insert, *changes, 'DELETE FROM t WHERE "Id" = {k}'),
    )


def _many_columns(count: int) -> Shape:
    columns = ", ".join(f"c{number} int DEFAULT {number}" for number in range(count))
    return keyed(f"columns_{count}", f"CREATE TABLE t (k int PRIMARY KEY, {columns}, v text)")


NAMES = (
    _named_tables(),
    _named_columns(),
    Shape(
        "columns_that_differ_in_case",
        ('CREATE TABLE t (k int PRIMARY KEY, v text, "V" text)',),
        (*KEYED, 'UPDATE t SET "V" = {v}'),
        refusal="case",
    ),
    Shape(
        "columns_named_like_metadata",
        ("CREATE TABLE t (k int PRIMARY KEY, v text, _file int, _pos int, _partition int, _deleted int, _spec_id int, _row_id int)",),
        # The remedy renames the reserved columns, so that changes can't name them.
        KEYED,
        refusal="reserve",
    ),
    keyed(
        "column_renamed_to_a_reserved_name",
        "CREATE TABLE t (k int PRIMARY KEY, v text, w int)",
        steps=(Step("ALTER TABLE t RENAME w TO _pos"), Step("UPDATE t SET v = 'reserved'")),
        refusal="reserve",
    ),
    _many_columns(300),
    Shape("no_columns", ("CREATE TABLE t (); INSERT INTO t DEFAULT VALUES",), ("INSERT INTO t DEFAULT VALUES",), refusal="column"),
    Shape(
        "columns_all_dropped",
        ("CREATE TABLE t (k int, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'); ALTER TABLE t REPLICA IDENTITY FULL",),
        ("INSERT INTO t DEFAULT VALUES",),
        (Step("ALTER TABLE t DROP COLUMN k"), Step("ALTER TABLE t DROP COLUMN v"), Step("ALTER TABLE t ADD COLUMN w int")),
        refusal="column",
    ),
)  # fmt: skip

_AUDIT = "CREATE TABLE other (n int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, k int, v text);"

REDIRECTED = (
    Shape(
        "inheritance",
        (
            "CREATE TABLE t (k int PRIMARY KEY, v text); CREATE TABLE child (extra int, PRIMARY KEY (k)) INHERITS (t);"
            "CREATE TABLE grandchild (v2 text, PRIMARY KEY (k)) INHERITS (child)",
        ),
        (
            *KEYED,
            "INSERT INTO child VALUES ({k}, {v}, {k}) ON CONFLICT DO NOTHING",
            "INSERT INTO grandchild VALUES ({k}, {v}, {k}, {v}) ON CONFLICT DO NOTHING",
            "UPDATE child SET extra = {k}",
        ),
        (
            Step("ALTER TABLE t ADD COLUMN w int DEFAULT 3"),
            Step("ALTER TABLE grandchild NO INHERIT child"),
            Step("TRUNCATE ONLY t"),
            Step("ALTER TABLE grandchild INHERIT child; TRUNCATE t; INSERT INTO child VALUES (1, 'after', 1)"),
        ),
        # A statement on t changes rows of the others, and fires no triggers of theirs.
        refusal="inherit" if MODE == "trigger" else None,
    ),
    Shape(
        "rule_instead",
        (_AUDIT + "CREATE TABLE t (k int PRIMARY KEY, v text);"
         "CREATE RULE r AS ON INSERT TO t WHERE new.k > 4 DO INSTEAD INSERT INTO other (k, v) VALUES (new.k, new.v);"
         "CREATE RULE d AS ON DELETE TO t DO ALSO INSERT INTO other (k, v) VALUES (old.k, 'deleted');"
         "CREATE RULE u AS ON UPDATE TO t WHERE new.v = 'a' DO INSTEAD NOTHING",),
        ("INSERT INTO t VALUES ({k}, {v})", "UPDATE t SET v = {v} WHERE k = {k}", "UPDATE t SET k = {k} WHERE k = {k}", "DELETE FROM t WHERE k = {k}"),
    ),
    Shape(
        "trigger_that_redirects",
        (_AUDIT + "CREATE TABLE t (k int PRIMARY KEY, v text); CREATE FUNCTION redirect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
         " IF new.k % 2 = 0 THEN INSERT INTO other (k, v) VALUES (new.k, new.v); RETURN NULL; END IF;"
         " new.v = coalesce(new.v, '') || '!'; RETURN new; END $$;"
         "CREATE TRIGGER b BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION redirect()",),
        KEYED,
    ),
    Shape(
        "trigger_that_writes_the_same_table",
        ("CREATE TABLE t (k int PRIMARY KEY, v text); CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
         " IF pg_trigger_depth() < 3 THEN UPDATE t SET v = coalesce(v, '') || '+' WHERE k = new.k; END IF; RETURN NULL; END $$;"
         "CREATE TRIGGER a AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION again()",),
        KEYED,
    ),
    Shape(
        "cascades",
        ("CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b');"
         "CREATE TABLE child (k int PRIMARY KEY, t int REFERENCES t ON UPDATE CASCADE ON DELETE CASCADE);"
         "CREATE TABLE nulled (k int PRIMARY KEY, t int DEFAULT 1 REFERENCES t ON UPDATE CASCADE ON DELETE SET NULL)",),
        (*KEYED, "INSERT INTO child VALUES ({k}, {k})", "INSERT INTO nulled VALUES ({k}, {k})", "INSERT INTO child SELECT k, k FROM t ON CONFLICT DO NOTHING"),
        (Step("TRUNCATE t CASCADE"), Step("TRUNCATE child; INSERT INTO t VALUES (1, 'x') ON CONFLICT DO NOTHING; INSERT INTO child VALUES (1, 1)")),
    ),
    Shape(
        "merge_statement",
        ("CREATE TABLE t (k int PRIMARY KEY, v text)",),
        (*KEYED, "MERGE INTO t USING (VALUES ({k}, {v}), (-{k}, {v})) AS s (k, v) ON t.k = s.k WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.v)",
         "WITH gone AS (DELETE FROM t WHERE k = {k} RETURNING k, v) INSERT INTO t SELECT -k - 10, v FROM gone ON CONFLICT DO NOTHING"),
        needs="current_setting('server_version_num')::int >= 150000",
    ),
)  # fmt: skip

LIVES = (
    Shape(
        "truncated_between_inserts",
        ("CREATE TABLE t (k int PRIMARY KEY, v text); CREATE TABLE l (k int, v text); ALTER TABLE l REPLICA IDENTITY FULL",),
        (
            *KEYED,
            "INSERT INTO t VALUES (100, 'x') ON CONFLICT DO NOTHING; TRUNCATE t; INSERT INTO t VALUES (101, 'y')",
            "INSERT INTO l VALUES (1, 'x'), (1, 'x'); TRUNCATE l; INSERT INTO l VALUES (1, 'x')",
            "TRUNCATE t, l RESTART IDENTITY",
            "TRUNCATE t; TRUNCATE t",
        ),
    ),
    Shape(
        "savepoints",
        ("CREATE TABLE t (k int PRIMARY KEY, v text)",),
        (
            *KEYED,
            "SAVEPOINT a; UPDATE t SET k = k + 50; SAVEPOINT b; DELETE FROM t; ROLLBACK TO b; ROLLBACK TO a",
            "SAVEPOINT a; UPDATE t SET v = 'kept'; SAVEPOINT b; TRUNCATE t; ROLLBACK TO b; INSERT INTO t VALUES ({k}, 'b') ON CONFLICT DO NOTHING; RELEASE a",
            "DO $$ BEGIN BEGIN INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (1, 'b'); EXCEPTION WHEN unique_violation THEN DELETE FROM t WHERE k = {k}; END; END $$",
        ),
    ),
    Shape(
        "column_renamed_and_added_while_rows_flow",
        ("CREATE TABLE t (k int PRIMARY KEY, v text)",),
        KEYED,
        (
            Step("INSERT INTO t VALUES (60, 'x'); ALTER TABLE t RENAME v TO w; UPDATE t SET w = 'renamed'; ALTER TABLE t RENAME w TO v"),
            Step("BEGIN; SAVEPOINT a; ALTER TABLE t RENAME v TO gone; ROLLBACK TO a; UPDATE t SET v = 'same'; COMMIT"),
            Step("INSERT INTO t VALUES (61, 'x'); ALTER TABLE t ADD COLUMN d text DEFAULT 'd'; UPDATE t SET d = NULL WHERE k = 61"),
            Step("ALTER TABLE t RENAME d TO e; ALTER TABLE t DROP COLUMN v; ALTER TABLE t RENAME e TO v; UPDATE t SET v = 'mine' WHERE k < 3"),
        ),
        refusal="the catalog does not show how",
    ),
    keyed(
        "column_dropped_and_added_again",
        "CREATE TABLE t (k int PRIMARY KEY, v text)",
        steps=(Step("ALTER TABLE t DROP COLUMN v, ADD COLUMN v text"), Step("ALTER TABLE t DROP COLUMN v, ADD COLUMN v text")),
    ),
    keyed(
        "rewritten", "CREATE TABLE t (k int PRIMARY KEY, v text)",
        steps=(Step("CLUSTER t USING t_pkey"), Step("VACUUM FULL t"), Step("ALTER TABLE t ALTER k TYPE bigint; UPDATE t SET v = 'w'"), Step("ALTER TABLE t ADD COLUMN r float8 DEFAULT random()")),
    ),
    keyed(
        "made_again_in_one_transaction", "CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'old' FROM generate_series(10, 20) i",
        steps=(
            Step("DROP TABLE t; CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new')"),
            Step("BEGIN; INSERT INTO t VALUES (2, 'x') ON CONFLICT DO NOTHING; DROP TABLE t; CREATE TABLE t (v text, n int, k int PRIMARY KEY); INSERT INTO t VALUES ('newer', 1, 1); COMMIT"),
        ),
    ),
    keyed(
        "renamed_and_replaced", "CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'old' FROM generate_series(10, 20) i",
        steps=(
            Step("ALTER TABLE t RENAME TO t_old; CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new'); DROP TABLE t_old"),
        ),
    ),
    keyed(
        "names_exchanged", "CREATE TABLE t (k int PRIMARY KEY, v text); CREATE TABLE u (k int PRIMARY KEY, v text); INSERT INTO u VALUES (100, 'u')",
        steps=(
            Step("ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u"),
            Step("INSERT INTO t VALUES (101, 'in t'); INSERT INTO u VALUES (102, 'in u')"),
        ),
    ),
    keyed("typed_table", "CREATE TYPE row_type AS (k int, v text, a int[]); CREATE TABLE t OF row_type (PRIMARY KEY (k))"),
    keyed("unlogged_then_logged", "CREATE UNLOGGED TABLE t (k int PRIMARY KEY, v text)", steps=(Step("ALTER TABLE t SET LOGGED"),)),
    Shape(
        "large_transactions",
        ("CREATE TABLE t (k int PRIMARY KEY, v text); CREATE TABLE l (k int, v text); ALTER TABLE l REPLICA IDENTITY FULL",),
        (
            "INSERT INTO t SELECT i, repeat({v}, 3) FROM generate_series(1, 3000) i ON CONFLICT (k) DO UPDATE SET v = excluded.v",
            "UPDATE t SET k = -k WHERE k % 3 = {k}",
            "DELETE FROM t WHERE k % 5 = {k}",
            "INSERT INTO l SELECT i % 7, 'same' FROM generate_series(1, 2000) i",
            "DELETE FROM l WHERE ctid IN (SELECT ctid FROM l LIMIT 500)",
            "UPDATE l SET v = {v} WHERE ctid IN (SELECT ctid FROM l LIMIT 300)",
        ),
    ),
)  # fmt: skip

TABLES = long_form_only(
    (*NAMES, *REDIRECTED, *LIVES),
    'Schema "of" awkward.names', "columns_300", "columns_all_dropped", "trigger_that_writes_the_same_table", "cascades",
    "merge_statement", "typed_table", "unlogged_then_logged", "large_transactions", "rewritten",
    "columns_that_differ_in_case", "column_renamed_to_a_reserved_name", "rule_instead", "savepoints",
    "names_exchanged",
)  # fmt: skip
