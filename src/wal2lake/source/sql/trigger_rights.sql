-- What the role may do to tables that get triggers, and whether the DBA's function can have the triggers always fire.
SELECT c.oid::int8, n.nspname::text, c.relname::text, pg_get_userbyid(c.relowner)::text, pg_has_role(c.relowner, 'USAGE'),
       has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'TRIGGER'),
       coalesce(pg_has_role(f.proowner, c.relowner, 'USAGE'), false),
       coalesce(has_function_privilege(f.oid, 'EXECUTE'), false)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN (
    SELECT p.oid, p.proowner
    FROM pg_proc p JOIN pg_namespace m ON m.oid = p.pronamespace
    WHERE m.nspname = 'wal2lake_changes' AND p.proname = 'enable_always' AND p.prosecdef
      AND p.pronargs = 1 AND p.proargtypes[0] = 'oid'::regtype
) f ON true
WHERE c.oid = ANY (%(oids)s::oid[])
ORDER BY n.nspname, c.relname
