-- The leaves of partitioned tables; a table that is not partitioned is its own leaf.
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT t.root, c.oid, c.relkind
    FROM tree t
    JOIN pg_inherits i ON i.inhparent = t.oid
    JOIN pg_class c ON c.oid = i.inhrelid
    WHERE t.relkind = 'p' AND c.relispartition
)
SELECT t.root::int8, t.oid::int8, n.nspname::text, c.relname::text, c.relkind::text
FROM tree t
JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.relkind <> 'p'
ORDER BY t.root, t.oid
