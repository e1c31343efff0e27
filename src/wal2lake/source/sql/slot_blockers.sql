-- A new slot waits for all transactions that were writing when it began, in any database.
SELECT a.pid, coalesce(a.datname::text, '?'), coalesce(a.application_name, '')
FROM pg_stat_activity a
WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start
LIMIT 10
