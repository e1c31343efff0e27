-- The session with the oldest transaction of those with locks that stand in the way of publishing tables.
SELECT a.pid, l.relation::regclass::text, coalesce(a.application_name, '')
FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation = ANY (%(tables)s::oid[])
  AND l.granted
  AND l.mode IN (
    'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'
  )
  AND l.pid <> pg_backend_pid()
ORDER BY a.xact_start, a.pid
LIMIT 1
