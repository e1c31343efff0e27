-- The leaves of partitioned tables; a table that is not partitioned is its own leaf. No lock is taken or waited for.
-- For each level from the leaf up: the partition, the transaction that made it a member (a row of pg_inherits is
-- inserted by each ATTACH), and whether it was created as a partition (CREATE TABLE ... PARTITION OF), so without rows.
-- ATTACH writes every column's row in pg_attribute again, by the same command as the row of pg_inherits or a later one:
-- a column that the same transaction wrote by an earlier command is one of PARTITION OF. A row that a rolled back
-- command has touched (xmax) has lost its own command number and proves nothing.
WITH RECURSIVE {partition_tree}
SELECT t.root::int8, t.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
       c.relfilenode::int8,
       (SELECT ARRAY[pn.nspname::text, p.relname::text]
        FROM pg_class p JOIN pg_namespace pn ON pn.oid = p.relnamespace WHERE p.oid = t.parent),
       t.levels, t.since,
       ARRAY(
           SELECT EXISTS (
               SELECT FROM pg_inherits i
               JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum > 0 AND NOT a.attisdropped
               WHERE i.inhrelid = l.oid::oid
                 AND a.xmin = i.xmin AND a.cmin::text::int8 < i.cmin::text::int8 AND a.xmax = '0' AND i.xmax = '0'
           )
           FROM unnest(t.levels) WITH ORDINALITY AS l (oid, level)
           ORDER BY l.level
       )
FROM tree t
JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.relkind <> 'p'
ORDER BY t.root, t.oid
