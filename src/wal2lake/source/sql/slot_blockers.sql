-- A new slot waits for all transactions that were writing when it began, in any database; prepared ones have no process.
SELECT a.pid, coalesce(a.datname::text, '?'), coalesce(a.application_name, ''), NULL, a.xact_start
FROM pg_stat_activity a
WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
UNION ALL
SELECT NULL, p.database::text, '', p.gid::text, p.prepared
FROM pg_prepared_xacts p
ORDER BY 5
LIMIT 10
