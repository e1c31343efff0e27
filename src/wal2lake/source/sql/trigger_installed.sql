-- What is installed on tables: their capture functions, and which of the triggers that call them are always enabled.
SELECT t.tgrelid::int8, p.prosrc, array_agg(t.tgname::text), bool_and(t.tgenabled = 'A')
FROM pg_trigger t
JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgrelid = ANY (%(oids)s::oid[]) AND n.nspname = 'wal2lake_changes'
GROUP BY t.tgrelid, p.prosrc
