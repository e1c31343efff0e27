-- The schema of the buffers: who owns it if it is there, whether the role may use it as its own, whether the buffers in
-- it are another role's, whether a DBA's function is in it, and whether the role could create it.
SELECT pg_get_userbyid(n.nspowner)::text, coalesce(pg_has_role(n.nspowner, 'USAGE'), false),
       EXISTS (SELECT FROM pg_class l WHERE l.relnamespace = n.oid AND l.relname = 'lanes'
               AND NOT pg_has_role(l.relowner, 'USAGE')),
       EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proname = 'enable_always'),
       has_database_privilege(current_database(), 'CREATE')
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = 'wal2lake_changes'
