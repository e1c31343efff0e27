-- What a copy relies on, of a table and the partitions below it: their files, columns, membership and primary keys. A
-- file that was replaced after a snapshot was taken shows no rows to it, what a partition went through while it was
-- detached is in no stream, and a key that was made later may not hold: a copy at the snapshot would be wrong.
WITH RECURSIVE {partition_tree}
SELECT c.oid::int8, t.since[1], c.relfilenode::int8,
       (SELECT i.indexrelid::int8 FROM pg_index i
        WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate),
       a.attnum::int, a.attname::text, a.atttypid::int8, a.atttypmod, a.attisdropped
FROM tree t
JOIN pg_class c ON c.oid = t.oid
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
ORDER BY c.oid, a.attnum
