-- What a table needs triggers on: itself and its partitions, in one order; and what triggers can't follow.
WITH RECURSIVE {partition_tree}
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, t.root::int8,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
               WHERE i.inhparent = c.oid AND NOT child.relispartition),
       t.oid = t.root AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid),
       EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid)
FROM tree t
JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f')
ORDER BY c.oid
