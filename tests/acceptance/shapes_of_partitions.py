"""Shapes of membership: partitions that differ from their root, or are detached, changed and attached again."""

from __future__ import annotations

from shapes import Shape, Step, long_form_only

PARTS = {"p": tuple(str(number) for number in range(12))}
MIX = (
    "INSERT INTO t (k, p, v) VALUES ({k}, {p}, {v}) ON CONFLICT DO NOTHING",
    "INSERT INTO t (k, p, v) VALUES ({k}, {p}, {v}), ({k}, {p}, {v}) ON CONFLICT DO NOTHING",
    "UPDATE t SET v = {v} WHERE k = {k}",
    "UPDATE t SET p = {p} WHERE k = {k} AND p = {p}",
    "UPDATE t SET k = {k} WHERE p = {p}",
    "DELETE FROM t WHERE k = {k}",
    "DELETE FROM t WHERE p = {p}",
)
"""changes of a partitioned table `t (k, p, v)` with the partition column `p`: rows move between leaves, too"""
BARE = tuple(statement.replace(" ON CONFLICT DO NOTHING", "") for statement in MIX)

_ROOT = "CREATE TABLE t (k int, p int, v text, PRIMARY KEY (k, p)) PARTITION BY {kind} (p);"
_RANGES = (
    "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (4);"
    "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (4) TO (8);"
    "CREATE TABLE t_8 PARTITION OF t FOR VALUES FROM (8) TO (12);"
)
_FILL = "INSERT INTO t SELECT i % 8 + 1, i % 12, 'v' || i FROM generate_series(1, 24) i"
RANGED = (_ROOT.replace("{kind}", "RANGE") + _RANGES, _FILL)
_BARE_ROOT = "CREATE TABLE t (k int, p int, v text) PARTITION BY RANGE (p);"
_FULL_LEAVES = "ALTER TABLE t_0 REPLICA IDENTITY FULL; ALTER TABLE t_4 REPLICA IDENTITY FULL; ALTER TABLE t_8 REPLICA IDENTITY FULL"
_LOOSE = "CREATE TABLE {name} (k int NOT NULL, p int NOT NULL, v text, PRIMARY KEY (k, p));"


def _loose(name: str) -> str:
    return _LOOSE.replace("{name}", name)


def _shape(name: str, *steps: str, make: tuple[str, ...] = RANGED, mix: tuple[str, ...] = MIX, **more: object) -> Shape:
    return Shape(name, make, mix, tuple(map(Step, steps)), values=PARTS, **more)  # type: ignore[arg-type]


LEAVES = (
    _shape(
        "several_levels",
        make=(
            _ROOT.replace("{kind}", "RANGE")
            + "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (4) PARTITION BY LIST (p);"
            "CREATE TABLE t_0_01 PARTITION OF t_0 FOR VALUES IN (0, 1); CREATE TABLE t_0_r PARTITION OF t_0 DEFAULT;"
            "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (4) TO (8) PARTITION BY HASH (k);"
            "CREATE TABLE t_4_0 PARTITION OF t_4 FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
            "CREATE TABLE t_4_1 PARTITION OF t_4 FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
            "CREATE TABLE t_8 PARTITION OF t FOR VALUES FROM (8) TO (MAXVALUE)",
            _FILL,
        ),
    ),
    _shape(
        "leaves_with_other_columns",
        "CREATE TABLE t_12 (z int, v text, y text, p int NOT NULL, k int NOT NULL); ALTER TABLE t_12 DROP COLUMN z, DROP COLUMN y;"
        "ALTER TABLE t ATTACH PARTITION t_12 FOR VALUES FROM (12) TO (20); INSERT INTO t VALUES (1, 13, 'there')",
        "ALTER TABLE t ADD COLUMN w int DEFAULT 7; UPDATE t SET w = k",
        "ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v text",
        make=(
            _ROOT.replace("{kind}", "RANGE")
            + "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (4);"
            "CREATE TABLE t_4 (v text, x int, p int NOT NULL, k int NOT NULL); ALTER TABLE t_4 DROP COLUMN x;"
            "ALTER TABLE t ATTACH PARTITION t_4 FOR VALUES FROM (4) TO (8);"
            "CREATE TABLE t_8 (p int NOT NULL, v text, k int NOT NULL);"
            "ALTER TABLE t ATTACH PARTITION t_8 FOR VALUES FROM (8) TO (12)",
            _FILL,
        ),
    ),
    _shape(
        "leaf_keys_without_the_partition_column",
        make=(
            _BARE_ROOT + _RANGES
            + "ALTER TABLE t_0 ADD PRIMARY KEY (k); ALTER TABLE t_4 ADD PRIMARY KEY (k); ALTER TABLE t_8 ADD PRIMARY KEY (k)",
            "INSERT INTO t SELECT i, p, 'v' FROM generate_series(1, 3) i, unnest(ARRAY[1, 5, 9]) p",
        ),
        refusal="partition",
    ),
    _shape(
        "leaf_keys_without_the_partition_column_full",
        make=(
            _BARE_ROOT + _RANGES
            + "ALTER TABLE t_0 ADD PRIMARY KEY (k); ALTER TABLE t_4 ADD PRIMARY KEY (k); ALTER TABLE t_8 ADD PRIMARY KEY (k);"
            + _FULL_LEAVES,
            "INSERT INTO t SELECT i, p, 'v' FROM generate_series(1, 3) i, unnest(ARRAY[1, 5, 9]) p",
        ),
    ),
    _shape("leaf_keys_with_the_partition_column", make=(
        _BARE_ROOT + _RANGES
        + "ALTER TABLE t_0 ADD PRIMARY KEY (k, p); ALTER TABLE t_4 ADD PRIMARY KEY (p, k); ALTER TABLE t_8 ADD PRIMARY KEY (k, p)",
        "INSERT INTO t SELECT i, p, 'v' FROM generate_series(1, 3) i, unnest(ARRAY[1, 5, 9]) p",
    )),
    _shape(
        "one_leaf_full",
        "ALTER TABLE t_0 REPLICA IDENTITY DEFAULT; ALTER TABLE t_4 REPLICA IDENTITY FULL",
        make=(RANGED[0] + "ALTER TABLE t_0 REPLICA IDENTITY FULL", _FILL),
    ),
    _shape(
        "one_leaf_by_another_index",
        make=(
            RANGED[0] + "ALTER TABLE t_4 ALTER v SET NOT NULL; CREATE UNIQUE INDEX u ON t_4 (v, k, p);"
            "ALTER TABLE t_4 REPLICA IDENTITY USING INDEX u",
            _FILL,
        ),
    ),
    _shape(
        "no_key_and_full_leaves",
        make=(_BARE_ROOT + _RANGES + _FULL_LEAVES, _FILL),
        mix=(*BARE, "INSERT INTO t SELECT * FROM t LIMIT 3", "DELETE FROM t_4 WHERE ctid = (SELECT min(ctid) FROM t_4)",
             "UPDATE t_0 SET v = {v} WHERE ctid = (SELECT max(ctid) FROM t_0)"),
    ),
    _shape(
        "invalid_key_of_the_root",
        make=(_BARE_ROOT + _RANGES + "ALTER TABLE t ALTER k SET NOT NULL, ALTER p SET NOT NULL;"
              "ALTER TABLE ONLY t ADD CONSTRAINT whole PRIMARY KEY (k, p);" + _FULL_LEAVES,
              "INSERT INTO t SELECT 1, 1, 'same' FROM generate_series(1, 4)"),
        mix=(*BARE, "DELETE FROM t_0 WHERE ctid = (SELECT min(ctid) FROM t_0)"),
    ),
    _shape(
        "hash", "ALTER TABLE t DETACH PARTITION h_1; UPDATE h_1 SET v = 'apart'; ALTER TABLE t ATTACH PARTITION h_1 FOR VALUES WITH (MODULUS 3, REMAINDER 1)",
        make=("CREATE TABLE t (k int, p int, v text, PRIMARY KEY (k, p)) PARTITION BY HASH (p, k);" + "".join(
            f"CREATE TABLE h_{n} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {n});" for n in range(3)), _FILL),
    ),
    Shape(
        "list_with_null",
        ("CREATE TABLE t (k int, p text, v text) PARTITION BY LIST (p); CREATE TABLE t_n PARTITION OF t FOR VALUES IN (NULL, 'x');"
         "CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a', ''); CREATE TABLE t_r PARTITION OF t DEFAULT;"
         "ALTER TABLE t_n REPLICA IDENTITY FULL; ALTER TABLE t_a REPLICA IDENTITY FULL; ALTER TABLE t_r REPLICA IDENTITY FULL",),
        BARE,
        (Step("TRUNCATE t_n"), Step("ALTER TABLE t DETACH PARTITION t_n", tuple(s.replace("{p}", "{q}") for s in BARE)), Step("ALTER TABLE t ATTACH PARTITION t_n FOR VALUES IN ('x', NULL)", BARE), Step("TRUNCATE t_a; INSERT INTO t VALUES (1, 'a', 'after')")),
        values={"p": ("NULL", "'x'", "'a'", "''", "'A'", "'a '"), "q": ("'a'", "''", "'A'", "'a '")},
    ),
    Shape(
        "range_of_two_columns_and_an_expression",
        ("CREATE TABLE t (k int, p int, v text) PARTITION BY RANGE (abs(p), k);"
         "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0, MINVALUE) TO (4, 5); CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (4, 5) TO (MAXVALUE, MAXVALUE);"
         "ALTER TABLE t_0 REPLICA IDENTITY FULL; ALTER TABLE t_4 REPLICA IDENTITY FULL",),
        BARE,
        (Step("TRUNCATE t_4"), Step("ALTER TABLE t DETACH PARTITION t_0; UPDATE t_0 SET v = 'apart'; ALTER TABLE t ATTACH PARTITION t_0 FOR VALUES FROM (0, MINVALUE) TO (4, 5)")),
        values={"p": ("-7", "-1", "0", "1", "4", "9")},
    ),
)  # fmt: skip

_REFILL = "INSERT INTO {} SELECT i, 13, 'loaded' FROM generate_series(1, 5) i"
_ATTACH = "ALTER TABLE t ATTACH PARTITION t_12 FOR VALUES FROM (12) TO (16)"

MEMBERSHIP = (
    _shape(
        "attached_with_rows",
        _loose("t_12") + _REFILL.format("t_12") + ";" + _ATTACH,
        "UPDATE t SET v = 'after' WHERE p = 13 AND k < 3",
    ),
    _shape(
        "loaded_and_attached_fixed_width",
        "CREATE TABLE t_12 (k int, p int); INSERT INTO t_12 SELECT i, 13 FROM generate_series(1, 5) i;" + _ATTACH
        + "; ALTER TABLE t_12 REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (9, 14)",
        make=("CREATE TABLE t (k int, p int) PARTITION BY RANGE (p);" + _RANGES + _FULL_LEAVES,),
        mix=("INSERT INTO t VALUES ({k}, {p})", "UPDATE t SET k = {k} WHERE p = {p}", "UPDATE t SET p = {p} WHERE k = {k}", "DELETE FROM t WHERE k = {k}"),
    ),
    _shape("attached_in_a_later_transaction", _loose("t_12"), _REFILL.format("t_12"), _ATTACH),
    _shape("new_partition_filled_at_once", "CREATE TABLE t_12 PARTITION OF t FOR VALUES FROM (12) TO (16);" + _REFILL.format("t")),
    _shape("new_empty_partition", "CREATE TABLE t_12 PARTITION OF t FOR VALUES FROM (12) TO (16)", _REFILL.format("t")),
    _shape("attached_without_rows", _loose("t_12") + _ATTACH, _REFILL.format("t")),
    Shape("detached", RANGED, tuple(s.replace("{p}", "{low}") for s in MIX),
                          (Step("ALTER TABLE t DETACH PARTITION t_8; INSERT INTO t_8 VALUES (99, 99, 'apart')"), Step("UPDATE t_8 SET v = 'later'")),
                          values={"low": tuple(map(str, range(8)))}),
    Shape("dropped", RANGED, tuple(s.replace("{p}", "{low}") for s in MIX), (Step("DROP TABLE t_8"),), values={"low": tuple(map(str, range(8)))}),
    _shape(
        "dropped_and_made_again",
        "DROP TABLE t_4; CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (4) TO (8)",
        "INSERT INTO t VALUES (1, 5, 'new') ON CONFLICT DO NOTHING",
    ),
    _shape(
        "detached_changed_attached",
        "ALTER TABLE t DETACH PARTITION t_4; UPDATE t_4 SET v = 'apart'; DELETE FROM t_4 WHERE k < 3; INSERT INTO t_4 VALUES (77, 5, 'new') ON CONFLICT DO NOTHING; ALTER TABLE t ATTACH PARTITION t_4 FOR VALUES FROM (4) TO (8)",
        "ALTER TABLE t DETACH PARTITION t_0; ALTER TABLE t ATTACH PARTITION t_0 FOR VALUES FROM (0) TO (4)",
    ),
    Shape(
        "detached_changed_attached_in_three_transactions",
        RANGED,
        MIX,
        (
            Step("ALTER TABLE t DETACH PARTITION t_4", tuple(s.replace("{p}", "{rest}") for s in MIX)),
            Step("UPDATE t_4 SET v = 'apart'; DELETE FROM t_4 WHERE k = 2"),
            Step("ALTER TABLE t ATTACH PARTITION t_4 FOR VALUES FROM (4) TO (8)", MIX),
        ),
        values={**PARTS, "rest": ("0", "1", "2", "3", "8", "9", "10", "11")},
    ),
    Shape(
        "detached_concurrently",
        RANGED,
        tuple(s.replace("{p}", "{low}") for s in MIX),
        (Step("ALTER TABLE t DETACH PARTITION t_8 CONCURRENTLY"),),
        values={"low": tuple(map(str, range(8)))},
    ),
    _shape(
        "attached_elsewhere",
        "CREATE TABLE u (k int, p int, v text, PRIMARY KEY (k, p)) PARTITION BY RANGE (p)",
        "ALTER TABLE t DETACH PARTITION t_8; ALTER TABLE u ATTACH PARTITION t_8 FOR VALUES FROM (8) TO (12); CREATE TABLE t_9 PARTITION OF t FOR VALUES FROM (8) TO (12)",
        "UPDATE u SET v = 'moved'",
    ),
    _shape(
        "sub_partition_detached_and_attached",
        "ALTER TABLE t DETACH PARTITION t_4; DELETE FROM t_4 WHERE k = 1; UPDATE t_4 SET v = 'apart'; ALTER TABLE t ATTACH PARTITION t_4 FOR VALUES FROM (4) TO (8)",
        "ALTER TABLE t_4 DETACH PARTITION t_6; UPDATE t_6 SET v = 'apart'; ALTER TABLE t_4 ATTACH PARTITION t_6 FOR VALUES FROM (6) TO (8)",
        make=(
            _ROOT.replace("{kind}", "RANGE")
            + "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (4); CREATE TABLE t_8 PARTITION OF t FOR VALUES FROM (8) TO (12);"
            "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (4) TO (8) PARTITION BY RANGE (p);"
            "CREATE TABLE t_5 PARTITION OF t_4 FOR VALUES FROM (4) TO (6); CREATE TABLE t_6 PARTITION OF t_4 FOR VALUES FROM (6) TO (8)",
            _FILL,
        ),
    ),
    _shape(
        "default_partition_split",
        "BEGIN; ALTER TABLE t DETACH PARTITION t_r; CREATE TABLE t_8 PARTITION OF t FOR VALUES FROM (8) TO (10); INSERT INTO t SELECT * FROM t_r WHERE p BETWEEN 8 AND 9;"
        "DELETE FROM t_r WHERE p BETWEEN 8 AND 9; ALTER TABLE t ATTACH PARTITION t_r DEFAULT; COMMIT",
        "TRUNCATE t_r",
        make=(
            _ROOT.replace("{kind}", "RANGE") + "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (4);"
            "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (4) TO (8); CREATE TABLE t_r PARTITION OF t DEFAULT", _FILL,
        ),
    ),
    _shape(
        "leaf_unlogged_and_logged",
        "ALTER TABLE t_4 SET UNLOGGED; UPDATE t_4 SET v = 'unlogged'; DELETE FROM t_4 WHERE k = 2; ALTER TABLE t_4 SET LOGGED",
        "ALTER TABLE t_0 SET UNLOGGED", "UPDATE t SET v = 'unlogged' WHERE k < 4", "ALTER TABLE t_0 SET LOGGED",
        refusal="unlogged",
    ),
    _shape("leaf_truncated", "TRUNCATE t_4", "BEGIN; INSERT INTO t VALUES (50, 5, 'x'); TRUNCATE t_4; INSERT INTO t VALUES (51, 5, 'y'); COMMIT", "TRUNCATE t_0, t_8; INSERT INTO t VALUES (52, 9, 'z')"),
    _shape("root_truncated", "TRUNCATE t", "BEGIN; INSERT INTO t VALUES (50, 5, 'x'); TRUNCATE t; INSERT INTO t VALUES (51, 5, 'y'); COMMIT", "BEGIN; SAVEPOINT a; TRUNCATE t; ROLLBACK TO a; INSERT INTO t VALUES (53, 5, 'y'); COMMIT"),
    _shape("leaf_rewritten", "CLUSTER t_4 USING t_4_pkey; UPDATE t SET v = 'c' WHERE p = 5", "VACUUM FULL t_0", "ALTER TABLE t_8 SET (fillfactor = 50)", "ALTER TABLE t ALTER v TYPE varchar(200)"),
    Shape(
        "mirrored_table_becomes_a_partition",
        (*RANGED, _loose("t_12") + _REFILL.format("t_12")),
        (*MIX, "UPDATE t_12 SET v = {v} WHERE k = {k}"),
        (Step(_ATTACH), Step("ALTER TABLE t DETACH PARTITION t_12"), Step("UPDATE t_12 SET v = 'apart again'"), Step(_ATTACH)),
        values=PARTS,
    ),
    _shape("leaf_renamed", "ALTER TABLE t_4 RENAME TO t_four; ALTER TABLE t_0 RENAME TO t_4; ALTER TABLE t_four RENAME TO t_0"),
    _shape("row_moved_in_chains", mix=(*MIX, "UPDATE t SET p = (p + 4) % 12", "UPDATE t SET p = 5 WHERE p = 1; UPDATE t SET p = 9 WHERE p = 5; UPDATE t SET p = 1 WHERE p = 9",
                                       "DELETE FROM t WHERE k = 1; INSERT INTO t VALUES (1, {p}, 'w'); UPDATE t SET p = {p} WHERE k = 1")),
)  # fmt: skip

PARTITIONS = long_form_only(
    (*LEAVES, *MEMBERSHIP),
    "leaf_keys_with_the_partition_column", "one_leaf_by_another_index", "new_empty_partition", "attached_without_rows",
    "detached_concurrently", "leaf_renamed", "leaf_rewritten", "row_moved_in_chains", "dropped",
    "new_partition_filled_at_once", "attached_in_a_later_transaction", "range_of_two_columns_and_an_expression",
    "attached_elsewhere", "root_truncated", "one_leaf_full", "detached", "dropped_and_made_again",
    "detached_changed_attached_in_three_transactions", "sub_partition_detached_and_attached", "leaf_truncated",
    "invalid_key_of_the_root",
)  # fmt: skip
