-- The oldest transaction of those with locks that block the publishing of tables; a prepared one has no process.
SELECT l.pid, l.relation::regclass::text, coalesce(a.application_name, ''), current_database()::text, p.gid::text
FROM pg_locks l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND l.virtualtransaction = '-1/' || p.transaction::text
WHERE l.locktype = 'relation'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation = ANY (%(tables)s::oid[])
  AND l.granted
  AND l.mode IN (
    'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'
  )
  AND (l.pid IS NULL OR l.pid <> pg_backend_pid())
ORDER BY coalesce(a.xact_start, p.prepared), l.pid
LIMIT 1
