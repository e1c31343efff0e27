-- The rows of the root that are in each partition, and the columns of the condition with their numbers in the root. NULL if no condition is valid for good:
-- the bounds of a default partition are whatever its siblings leave; an expression, a collation in which different texts
-- are equal, or a user-defined operator class have no counterpart elsewhere. Reading the bounds waits for ACCESS
-- EXCLUSIVE locks; without `wait`, a partition that is locked, or is to be, is left out.
WITH above AS MATERIALIZED (
    SELECT c.oid, a.oid AS level
    FROM unnest(%(oids)s::oid[]) AS c(oid)
    CROSS JOIN LATERAL pg_partition_ancestors(c.oid) AS a(oid)
), free AS MATERIALIZED (
    SELECT c.oid FROM unnest(%(oids)s::oid[]) AS c(oid)
    WHERE %(wait)s OR NOT EXISTS (
        SELECT FROM above a
        JOIN pg_locks l ON l.relation = a.level AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
        WHERE a.oid = c.oid AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    )
), told AS MATERIALIZED (
    SELECT f.oid,
           NOT EXISTS (SELECT FROM above a JOIN pg_partitioned_table p ON p.partdefid = a.level WHERE a.oid = f.oid)
           AND NOT EXISTS (
               SELECT FROM above a
               JOIN pg_partitioned_table p ON p.partrelid = a.level
               CROSS JOIN LATERAL unnest(p.partattrs::int2[], p.partclass::oid[], p.partcollation::oid[])
                   AS k (attnum, opclass, collate_by)
               WHERE a.oid = f.oid
                 AND (p.partstrat = 'h' OR k.attnum = 0
                      OR EXISTS (SELECT FROM pg_opclass o WHERE o.oid = k.opclass AND NOT o.opcdefault)
                      OR EXISTS (SELECT FROM pg_collation o WHERE o.oid = k.collate_by AND NOT o.collisdeterministic))
           ) AS expressible
    FROM free f
)
SELECT t.oid::int8,
       CASE WHEN t.expressible THEN pg_get_partition_constraintdef(t.oid) END,
       (SELECT coalesce(array_agg(DISTINCT ARRAY[k.attname::text, own.attnum::text]), '{}')
        FROM above a
        JOIN pg_partitioned_table p ON p.partrelid = a.level
        JOIN pg_attribute k ON k.attrelid = p.partrelid AND k.attnum = ANY (p.partattrs::int2[])
        JOIN pg_attribute own ON own.attrelid = pg_partition_root(t.oid) AND own.attname = k.attname
        WHERE a.oid = t.oid)
FROM told t
