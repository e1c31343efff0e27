-- What a copy relies on, of a table and the partitions below it: their files, columns, membership and primary keys. A
-- file that was replaced after a snapshot was taken shows no rows to it, what a partition went through while it was
-- detached is in no stream, and a key that was made later may not hold: a copy at the snapshot would be wrong.
WITH RECURSIVE tree AS (
    SELECT c.oid, c.relkind, NULL::int8 AS since FROM pg_class c WHERE c.oid = %(oid)s::oid
    UNION ALL
    SELECT c.oid, c.relkind, i.xmin::text::int8
    FROM tree t
    JOIN pg_inherits i ON i.inhparent = t.oid
    JOIN pg_class c ON c.oid = i.inhrelid
    WHERE t.relkind = 'p' AND c.relispartition AND NOT i.inhdetachpending
)
SELECT c.oid::int8, t.since, c.relfilenode::int8,
       (SELECT i.indexrelid::int8 FROM pg_index i
        WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate),
       a.attnum::int, a.attname::text, a.atttypid::int8, a.atttypmod, a.attisdropped
FROM tree t
JOIN pg_class c ON c.oid = t.oid
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
ORDER BY c.oid, a.attnum
