-- The leaves of partitioned tables; a table that is not partitioned is its own leaf. A leaf is fresh if it was made as a
-- partition, by one command, or has no rows: one that was attached may have rows that were never published with it.
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind, true AS made_there FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT t.root, c.oid, c.relkind,
           t.made_there AND i.xmin = a.xmin AND i.cmin::text::int8 - a.cmin::text::int8 BETWEEN 0 AND 2
    FROM tree t
    JOIN pg_inherits i ON i.inhparent = t.oid
    JOIN pg_class c ON c.oid = i.inhrelid
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
    WHERE t.relkind = 'p' AND c.relispartition
)
SELECT t.root::int8, t.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relfilenode::int8,
       CASE WHEN t.made_there THEN true ELSE coalesce(pg_relation_size(c.oid), 0) = 0 END
FROM tree t
JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.relkind <> 'p'
ORDER BY t.root, t.oid
