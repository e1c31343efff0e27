-- What a table needs triggers on: itself and its partitions, in one order; and what triggers can't follow.
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, coalesce(p.root, c.oid)::oid::int8,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
               WHERE i.inhparent = c.oid AND NOT child.relispartition),
       p.oid = wanted.oid AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid),
       EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid)
FROM unnest(%(oids)s::oid[]) AS wanted (oid)
CROSS JOIN LATERAL (
    SELECT wanted.oid, NULL::oid AS root
    UNION
    SELECT t.relid::oid, wanted.oid FROM pg_partition_tree(wanted.oid) t
) AS p
JOIN pg_class c ON c.oid = p.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND (p.root IS NOT NULL OR c.relkind <> 'p')
ORDER BY c.oid
