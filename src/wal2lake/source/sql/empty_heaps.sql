-- Those whose file has no page, so no row. Asking for a size waits for an ACCESS EXCLUSIVE lock; whoever holds or awaits
-- one (VACUUM FULL may for hours) leaves the question open.
SELECT c.oid::int8
FROM pg_class c
WHERE c.oid = ANY (%(oids)s::oid[])
  AND CASE WHEN NOT EXISTS (
          SELECT FROM pg_locks l
          WHERE l.locktype = 'relation' AND l.relation = c.oid AND l.mode = 'AccessExclusiveLock'
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      ) THEN pg_relation_size(c.oid) = 0 ELSE false END
