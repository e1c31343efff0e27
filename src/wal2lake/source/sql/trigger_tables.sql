-- What a table needs triggers on: itself and its partitions, in one order; and what triggers can't follow. Not by
-- pg_partition_tree: it locks the table, and would wait for whoever truncates or alters it.
WITH RECURSIVE tree (root, oid) AS (
    SELECT wanted.oid, wanted.oid FROM unnest(%(oids)s::oid[]) AS wanted (oid)
    UNION
    SELECT tree.root, i.inhrelid
    FROM tree
    JOIN pg_inherits i ON i.inhparent = tree.oid
    JOIN pg_class child ON child.oid = i.inhrelid
    WHERE child.relispartition
)
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, tree.root::int8,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
               WHERE i.inhparent = c.oid AND NOT child.relispartition),
       tree.oid = tree.root AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid),
       EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid)
FROM tree
JOIN pg_class c ON c.oid = tree.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f')
ORDER BY c.oid
