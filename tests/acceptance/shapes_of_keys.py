"""Shapes of identity: keys that identify rows, keys that only seem to, and changes between them."""

from __future__ import annotations

from shapes import KEYED, KEYLESS, SMALL, Shape, Step, keyed, keyless, long_form_only

FULL = "ALTER TABLE t REPLICA IDENTITY FULL"
CITEXT = "CREATE EXTENSION IF NOT EXISTS citext SCHEMA public"
WIDE = ("repeat('x', 9000)", "repeat('y', 9001)", "NULL", "'short'")


def _full(columns: str, more: str = "") -> str:
    return f"CREATE TABLE t ({columns}); {more}; {FULL}"


def _typed(name: str, type: str, *literals: str, before: str = "", **more: object) -> Shape:
    """A primary key of a type; the values are such that some are equal to PostgreSQL and not the same text."""
    return keyed(name, f"{before}; CREATE TABLE t (k {type} PRIMARY KEY, v text)", values={"k": literals}, **more)


SHIFTS = (
    "UPDATE t SET k = k + 1",
    "UPDATE t SET k = k - 1",
    "UPDATE t SET k = 9 - k",
    "INSERT INTO t (k, v) VALUES ({k}, {v})",
    "DELETE FROM t WHERE k = {k}",
    "UPDATE t SET v = {v} WHERE k = {k}",
)
"""changes that a deferrable key allows: rows meet at a key in the middle of a statement"""

DEFERRABLE = (
    Shape(
        "deferrable_primary_key_full",
        (_full("k int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text"), "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5) i"),
        SHIFTS,
    ),
    Shape(
        "deferrable_unique_full",
        (_full("k int NOT NULL UNIQUE DEFERRABLE, v text"), "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5) i"),
        SHIFTS,
    ),
    Shape(
        "deferrable_primary_key_and_identity_by_index",
        (
            "CREATE TABLE t (k int PRIMARY KEY DEFERRABLE, o int NOT NULL UNIQUE, v text);"
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_o_key",
        ),
        (
            "INSERT INTO t VALUES ({k}, {k}, {v})",
            "UPDATE t SET k = k + 1",
            "UPDATE t SET k = 9 - k, v = {v}",
            "UPDATE t SET o = {k} WHERE k = {k}",
            "DELETE FROM t WHERE o = {k}",
        ),
    ),
    Shape(
        "deferrable_primary_key_default",
        ("CREATE TABLE t (k int PRIMARY KEY DEFERRABLE, v text)", "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5) i"),
        SHIFTS,
        refusal="would refuse UPDATE and DELETE",
    ),
)  # fmt: skip

NEARLY_KEYS = (
    keyless("partial_unique", _full("k int, v text", "CREATE UNIQUE INDEX ON t (k) WHERE v = 'a'")),
    keyless("expression_unique", _full("k int, v text", "CREATE UNIQUE INDEX ON t ((k + length(v)))")),
    keyless("nullable_unique", _full("k int UNIQUE, v text"), values={"k": ("NULL", *SMALL)}),
    keyless("unique_nulls_not_distinct", _full("k int, v text, UNIQUE NULLS NOT DISTINCT (k)"), values={"k": ("NULL", *SMALL)}, needs="current_setting('server_version_num')::int >= 150000"),
    keyless(
        "invalid_unique_index",
        (_full("k int NOT NULL, v text"), "INSERT INTO t VALUES (1, 'a'), (1, 'a')", "CREATE UNIQUE INDEX CONCURRENTLY ON t (k)"),
    ),
    keyless("no_key_full", _full("k int, v text"), values={"k": ("NULL", *SMALL)}),
    keyless("no_key_floats", _full("k float8, v real"), values={"k": ("'NaN'", "0", "'-0'", "1.5", "NULL"), "v": ("'NaN'", "'-0'", "0", "NULL", "'-Infinity'")}),
    keyless("no_key_wide", _full("k int, v text", "ALTER TABLE t ALTER v SET STORAGE EXTERNAL"), values={"v": WIDE}),
    keyless("no_key_many_types", _full("k int, v jsonb, a int[], n numeric, b bytea, c char(4), i interval"),
            values={"v": ("""'{"a": 1}'""", "NULL", "'[1.0, 1.00]'")}),
    Shape(
        "only_nulls",
        (_full("a int, b text, c numeric(8,2)"), "INSERT INTO t SELECT FROM generate_series(1, 5)"),
        (
            "INSERT INTO t SELECT FROM generate_series(1, 2)",
            "INSERT INTO t (b) VALUES ({v})",
            "UPDATE t SET a = {k} WHERE ctid = (SELECT min(ctid) FROM t WHERE a IS NULL)",
            "UPDATE t SET a = NULL, b = NULL WHERE a = {k}",
            "DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t WHERE b IS NULL)",
        ),
    ),
)  # fmt: skip

INDEXED = (
    keyed(
        "identity_by_index",
        "CREATE TABLE t (v text, k int NOT NULL UNIQUE); ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key",
    ),
    Shape(
        "identity_beside_primary_key",
        (
            "CREATE TABLE t (k int PRIMARY KEY, a int NOT NULL, b text NOT NULL, v text, UNIQUE (b, a));"
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_b_a_key",
        ),
        (
            "INSERT INTO t VALUES ({k}, {k}, {b}, {v})",
            "UPDATE t SET k = {k} WHERE k = {k}",
            "UPDATE t SET a = {k}, b = {b} WHERE k = {k}",
            "UPDATE t SET v = {v} WHERE b = {b}",
            "DELETE FROM t WHERE k = {k}",
        ),
        values={"b": ("'x'", "'X'", "'x '", "''")},
    ),
    Shape(
        "primary_key_with_included_columns",
        ("CREATE TABLE t (v text, k int, w text, PRIMARY KEY (k) INCLUDE (v, w))",),
        (*KEYED, "UPDATE t SET w = {v}, v = w"),
    ),
    Shape(
        "composite_in_other_order",
        ("CREATE TABLE t (a int, v text, b text, c int, PRIMARY KEY (c, b, a))",),
        (
            "INSERT INTO t VALUES ({k}, {v}, {b}, {k}) ON CONFLICT (a, b, c) DO UPDATE SET v = excluded.v",
            "UPDATE t SET a = c, c = a",
            "UPDATE t SET b = {b} WHERE a = {k}",
            "UPDATE t SET v = {v} WHERE c = {k}",
            "DELETE FROM t WHERE (a, c) = ({k}, {k})",
        ),
        values={"k": ("1", "2", "3"), "b": ("'1'", "'2'", "''")},
    ),
    keyed(
        "key_after_dropped_columns",
        "CREATE TABLE t (x int, y text, v text, z int, k int); ALTER TABLE t DROP COLUMN x, DROP COLUMN y;"
        "INSERT INTO t VALUES ('v', 1, -1); ALTER TABLE t DROP COLUMN z, ADD PRIMARY KEY (k)",
    ),
    Shape(
        "every_column_is_key",
        ("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))",),
        ("INSERT INTO t VALUES ({k}, {k})", "UPDATE t SET a = b, b = a", "UPDATE t SET a = {k} WHERE b = {k}", "DELETE FROM t WHERE a = {k}"),
    ),
)  # fmt: skip

TYPED = (
    _typed("float8_key", "float8", "'NaN'", "0", "'-0'", "1.5", "'Infinity'", "5e-324"),
    _typed("float4_key", "real", "'NaN'", "0", "'-0'", "0.1", "16777217"),
    _typed("numeric_key", "numeric", "1", "1.0", "1.00", "'NaN'", "1e20", "0", "0.0", "-0.0"),
    _typed("decimal_key", "numeric(10,2)", "1", "1.005", "0", "-7.25"),
    _typed("decimal_key_with_nan", "numeric(10,2)", "1", "'NaN'", "-7.25", refusal="can't hold"),
    _typed("citext_key", "citext", "'a'", "'A'", "'ä'", "'Ä'", "'a '", "''", before=CITEXT),
    _typed("citext_domain_key", "label", "'a'", "'A'", "'b'", "'B'", before=f"{CITEXT}; CREATE DOMAIN label AS citext"),
    _typed(
        "nondeterministic_key", 'text COLLATE blind', "'a'", "'A'", "'b'", "'B'", "''",
        before="CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        needs="EXISTS (SELECT FROM pg_collation WHERE collname = 'en-x-icu')",
    ),
    _typed("char_key", "char(4)", "'a'", "'a  '", "''", "' '", "'b'", "'ab c'"),
    _typed("bpchar_key", "bpchar", "'a'", "'a  '", "''", "' '", "'b'"),
    _typed("text_key", "text", "'a'", "'A'", "'a '", "''", "E'\\n'", "'ä'", "E'a\\u0308'", "'NULL'"),
    _typed("bytea_key", "bytea", "''", "'\\x00'", "'\\x0000'", "'\\xff'", "'\\x5c78'"),
    _typed("uuid_key", "uuid", *(f"'0000000{n}-0000-4000-8000-00000000000A'" for n in range(6))),
    _typed("timestamptz_key", "timestamptz", "'2024-03-31 01:30+00'", "'2024-03-31 03:30+02'", "'2024-10-27 02:30+02'", "'2024-10-27 02:30+01'", "'0001-01-01 00:00+00'"),
    _typed("timestamp_key", "timestamp(3)", "'2024-03-31 02:30'", "'2024-03-31 02:30:00.0004'", "'1883-11-18 12:03:58'", "'9999-12-31 23:59:59.999'"),
    _typed("date_key", "date", "'2024-02-29'", "'0001-01-01'", "'1582-10-10'", "'9999-12-31'"),
    _typed("interval_key", "interval", "'1 day'", "'24 hours'", "'1 month'", "'30 days'", "'-1 day'", "'0'"),
    _typed("timetz_key", "timetz", "'12:00+00'", "'13:00+01'", "'24:00+00'", "'00:00+00'"),
    _typed("jsonb_key", "jsonb", """'{"a": 1}'""", """'{"a": 1.0}'""", "'1'", "'1.0'", "'null'", "'[]'"),
    _typed("array_key", "int[]", "'{1,2}'", "'{1}'", "'{}'", "'{NULL}'", "'{2,1}'"),
    _typed("range_key", "numrange", "'[1,2)'", "'[1.0,2.0)'", "'empty'", "'(,)'"),
    _typed("inet_key", "inet", "'10.0.0.1'", "'10.0.0.1/32'", "'10.0.0.1/8'", "'::1'"),
    _typed("boolean_key", "boolean", "true", "false"),
    _typed("composite_type_key", "pair", "ROW(1, 'a')::pair", "ROW(1, NULL)::pair", "ROW(1, '')::pair", "ROW(2, 'a,b')::pair", before="CREATE TYPE pair AS (n int, s text)"),
    _typed(
        "enum_key", "mood", "'sad'", "'ok'", "'a b'", before="CREATE TYPE mood AS ENUM ('sad', 'ok', 'a b')",
        steps=(Step("ALTER TYPE mood ADD VALUE 'glad' BEFORE 'ok'", (*KEYED, "INSERT INTO t VALUES ('glad', {v}) ON CONFLICT DO NOTHING")),),
    ),
    _typed("domain_key", "even", "2", "4", "6", before="CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0)"),
)  # fmt: skip

CHAINS = (
    Shape(
        "key_chains_and_swaps",
        ("CREATE TABLE t (k int PRIMARY KEY, v text, w text)", "INSERT INTO t SELECT i, 'v' || i, i FROM generate_series(1, 6) i"),
        (
            "UPDATE t SET k = -k WHERE k IN ({k}, {k}); UPDATE t SET k = 9 + k WHERE k < 0",
            "UPDATE t SET k = k + 100; UPDATE t SET k = k - 99",
            "UPDATE t SET k = 0 WHERE k = 1; UPDATE t SET k = 1 WHERE k = 2; UPDATE t SET k = 2 WHERE k = 0",
            "UPDATE t SET v = {v} WHERE k = {k}; UPDATE t SET k = {k} WHERE k = {k}; DELETE FROM t WHERE k = {k}",
            "INSERT INTO t VALUES ({k}, {v}) ON CONFLICT (k) DO UPDATE SET v = t.v || excluded.v",
            "DELETE FROM t WHERE k = {k}; INSERT INTO t VALUES ({k}, {v})",
        ),
    ),
    Shape(
        "wide_values_unchanged_while_the_key_changes",
        ("CREATE TABLE t (k int PRIMARY KEY, v text, n int); ALTER TABLE t ALTER v SET STORAGE EXTERNAL", "INSERT INTO t SELECT i, repeat('y', 9000) || i, 0 FROM generate_series(1, 6) i"),
        (
            "UPDATE t SET k = {k} WHERE k = {k}",
            "UPDATE t SET k = -k WHERE k IN ({k}, {k}); UPDATE t SET k = 9 + k WHERE k < 0",
            "UPDATE t SET n = n + 1",
            "UPDATE t SET v = {v} WHERE k = {k}",
            "DELETE FROM t WHERE k = {k}",
            "INSERT INTO t VALUES ({k}, {v}, 0)",
        ),
        values={"v": WIDE},
    ),
    Shape(
        "wide_key",
        ("CREATE TABLE t (k text PRIMARY KEY, v text, n int); ALTER TABLE t ALTER v SET STORAGE EXTERNAL",),
        (*KEYED, "UPDATE t SET n = coalesce(n, 0) + 1"),
        values={"k": ("repeat('k', 2000)", "repeat('k', 2001)", "repeat('k', 2000) || ' '", "'k'"), "v": WIDE},
    ),
    Shape(
        "wide_values_full_identity",
        ("CREATE TABLE t (k int PRIMARY KEY, v text, n int); ALTER TABLE t ALTER v SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",),
        (*KEYED, "UPDATE t SET n = coalesce(n, 0) + 1"),
        values={"v": WIDE},
    ),
    Shape(
        "generated_columns",
        (
            "CREATE TABLE t (k int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v text, s text GENERATED ALWAYS AS (v || 's') STORED)",
        ),
        (*KEYED, "INSERT INTO t (v) VALUES ({v})"),
        needs="current_setting('server_version_num')::int >= 180000",
    ),
    Shape(
        "generated_key",
        ("CREATE TABLE t (a int, k int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY, v text)",),
        ("INSERT INTO t VALUES ({k}, DEFAULT, {v})", "UPDATE t SET a = {k} WHERE a = {k}", "UPDATE t SET v = {v}", "DELETE FROM t WHERE a = {k}"),
        needs="current_setting('server_version_num')::int >= 180000",
    ),
    Shape(
        "virtual_column",
        ("CREATE TABLE t (k int PRIMARY KEY, w int GENERATED ALWAYS AS (k * 3) VIRTUAL, v text)",),
        KEYED,
        unmirrored=frozenset({"w"}),
        needs="current_setting('server_version_num')::int >= 180000",
    ),
)  # fmt: skip

_ALL_KEYS = "(k int NOT NULL, o int NOT NULL, v text, CONSTRAINT p PRIMARY KEY (k), CONSTRAINT u UNIQUE (o))"
_BOTH = (
    "INSERT INTO t VALUES ({k}, {k}, {v}) ON CONFLICT DO NOTHING",
    "UPDATE t SET k = {k} WHERE o = {k}",
    "UPDATE t SET o = {k} WHERE k = {k}",
    "UPDATE t SET v = {v} WHERE k = {k}",
    "DELETE FROM t WHERE k = {k}",
)

CHANGED = (
    Shape(
        "primary_key_changed",
        (f"CREATE TABLE t {_ALL_KEYS}",),
        _BOTH,
        (
            Step("ALTER TABLE t DROP CONSTRAINT p, ADD PRIMARY KEY (o)"),
            Step("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (o, k)"),
            Step("ALTER TABLE t DROP CONSTRAINT t_pkey, REPLICA IDENTITY FULL; UPDATE t SET k = -o; ALTER TABLE t ADD CONSTRAINT p PRIMARY KEY (k), REPLICA IDENTITY DEFAULT"),
        ),
        loses_identity=True,
    ),
    Shape(
        "identity_switched",
        (f"CREATE TABLE t {_ALL_KEYS}",),
        _BOTH,
        (
            Step(FULL),
            Step("ALTER TABLE t REPLICA IDENTITY USING INDEX u"),
            Step("ALTER TABLE t REPLICA IDENTITY DEFAULT"),
            Step("BEGIN; ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET k = -k; ALTER TABLE t REPLICA IDENTITY DEFAULT; COMMIT"),
        ),
    ),
    Shape(
        "identity_lost_for_a_while",
        (f"CREATE TABLE t {_ALL_KEYS}",),
        _BOTH,
        (Step("ALTER TABLE t REPLICA IDENTITY NOTHING"), Step("ALTER TABLE t REPLICA IDENTITY DEFAULT")),
        refusal="would refuse UPDATE and DELETE",
        loses_identity=True,
    ),
    Shape(
        "identity_index_dropped",
        (f"CREATE TABLE t {_ALL_KEYS}; ALTER TABLE t REPLICA IDENTITY USING INDEX u",),
        _BOTH,
        (Step("ALTER TABLE t DROP CONSTRAINT u"), Step("ALTER TABLE t REPLICA IDENTITY DEFAULT", ("UPDATE t SET o = {k}", *_BOTH))),
        refusal="would refuse UPDATE and DELETE",
        loses_identity=True,
    ),
    Shape(
        "duplicates_deleted_then_primary_key",
        (_full("k int NOT NULL, v text"), "INSERT INTO t SELECT i / 3, 'same' FROM generate_series(0, 11) i"),
        KEYLESS,
        (
            Step("DELETE FROM t a USING t b WHERE a.ctid < b.ctid AND a.k = b.k; ALTER TABLE t ADD CONSTRAINT p PRIMARY KEY (k)", KEYED),
            Step("ALTER TABLE t DROP CONSTRAINT p; INSERT INTO t SELECT * FROM t; DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t)", KEYLESS),
            Step("DELETE FROM t a USING t b WHERE a.ctid < b.ctid AND a.k = b.k; UPDATE t SET v = 'z' WHERE k = 2; ALTER TABLE t ADD CONSTRAINT p PRIMARY KEY (k)", KEYED),
        ),
    ),
    Shape(
        "primary_key_dropped_full",
        (_full("k int CONSTRAINT p PRIMARY KEY, v text"),),
        KEYED,
        (Step("ALTER TABLE t DROP CONSTRAINT p", KEYLESS), Step("ALTER TABLE t ALTER k DROP NOT NULL; INSERT INTO t VALUES (NULL, 'x'), (NULL, 'x')")),
    ),
    Shape(
        "primary_key_dropped_default",
        ("CREATE TABLE t (k int CONSTRAINT p PRIMARY KEY, v text)",),
        KEYED,
        (Step("ALTER TABLE t DROP CONSTRAINT p", KEYLESS),),
        refusal="would refuse UPDATE and DELETE",
        loses_identity=True,
    ),
    keyless("no_identity_at_all", "CREATE TABLE t (k int, v text)", refusal="would refuse UPDATE and DELETE"),
    Shape(
        "key_and_value_exchange_their_names",
        ("CREATE TABLE t (k int PRIMARY KEY, v int)",),
        KEYED,
        (
            Step("ALTER TABLE t RENAME k TO x; ALTER TABLE t RENAME v TO k; ALTER TABLE t RENAME x TO v"),
        ),
        values={"k": SMALL, "v": SMALL},
    ),
    Shape(
        "key_column_widened",
        ("CREATE TABLE t (k smallint PRIMARY KEY, v text)",),
        KEYED,
        (Step("ALTER TABLE t ALTER k TYPE int"), Step("ALTER TABLE t ALTER k TYPE text", tuple(statement.replace("{k}", "'{k}'") for statement in KEYED))),
    ),
    Shape(
        "key_column_dropped_and_added",
        ("CREATE TABLE t (k int PRIMARY KEY, v text)",),
        KEYED,
        (Step("ALTER TABLE t DROP COLUMN k; ALTER TABLE t ADD COLUMN k int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"),),
    ),
)  # fmt: skip

KEYS = long_form_only(
    (*DEFERRABLE, *NEARLY_KEYS, *INDEXED, *TYPED, *CHAINS, *CHANGED),
    "unique_nulls_not_distinct", "no_key_many_types", "every_column_is_key", "float4_key", "decimal_key",
    "citext_domain_key", "bpchar_key", "text_key", "timestamp_key", "date_key", "timetz_key", "jsonb_key", "range_key",
    "inet_key", "boolean_key", "composite_type_key", "wide_key", "generated_columns", "key_column_widened",
    "deferrable_primary_key_and_identity_by_index", "no_key_wide", "only_nulls", "identity_by_index", "bytea_key",
    "uuid_key", "domain_key", "wide_values_full_identity", "virtual_column", "identity_index_dropped",
    "nullable_unique", "key_column_dropped_and_added", "deferrable_unique_full", "no_key_floats",
    "identity_beside_primary_key", "primary_key_with_included_columns", "timestamptz_key", "interval_key", "array_key",
    "enum_key", "wide_values_unchanged_while_the_key_changes", "primary_key_dropped_default",
)  # fmt: skip
