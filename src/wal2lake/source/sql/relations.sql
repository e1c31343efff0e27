-- Everything that a name or a pattern may mean, with what decides whether it can be mirrored.
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
       CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid::int8 END,
       CASE WHEN c.relispartition THEN (SELECT i.inhparent::int8 FROM pg_inherits i WHERE i.inhrelid = c.oid) END
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'wal2lake', 'wal2lake_changes')
  AND n.nspname NOT LIKE 'pg\_toast\_temp\_%'
ORDER BY n.nspname, c.relname
