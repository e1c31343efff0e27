-- The leaves of partitioned tables; a table that is not partitioned is its own leaf. No lock is taken or waited for.
-- For each level from the leaf up: the partition, the transaction that made it a member (a row of pg_inherits is
-- inserted by each ATTACH), and whether it was created as a partition (CREATE TABLE ... PARTITION OF), so without rows.
-- ATTACH writes every column's row in pg_attribute again, by the same command as the row of pg_inherits or a later one:
-- a column that the same transaction wrote by an earlier command is one of PARTITION OF. A row that a rolled back
-- command has touched (xmax) has lost its own command number and proves nothing.
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind, '{}'::int8[] AS way, '{}'::int8[] AS since, '{}'::bool[] AS made
    FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT t.root, c.oid, c.relkind, c.oid::int8 || t.way, i.xmin::text::int8 || t.since,
           EXISTS (
               SELECT FROM pg_attribute a
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                 AND a.xmin = i.xmin AND a.cmin::text::int8 < i.cmin::text::int8 AND a.xmax = '0' AND i.xmax = '0'
           ) || t.made
    FROM tree t
    JOIN pg_inherits i ON i.inhparent = t.oid
    JOIN pg_class c ON c.oid = i.inhrelid
    WHERE t.relkind = 'p' AND c.relispartition AND NOT i.inhdetachpending
)
SELECT t.root::int8, t.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
       c.relfilenode::int8, t.way, t.since, t.made
FROM tree t
JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.relkind <> 'p'
ORDER BY t.root, t.oid
