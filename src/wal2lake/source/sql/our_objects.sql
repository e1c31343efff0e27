-- What wal2lake has made in this database, with who owns it and whether that is the role.
SELECT 'PUBLICATION', ARRAY[p.pubname::text], pg_get_userbyid(p.pubowner)::text, pg_has_role(p.pubowner, 'USAGE')
FROM pg_publication p WHERE p.pubname = ANY (%(publications)s)
UNION ALL
SELECT 'SCHEMA', ARRAY[n.nspname::text], pg_get_userbyid(n.nspowner)::text, pg_has_role(n.nspowner, 'USAGE')
FROM pg_namespace n WHERE n.nspname = 'wal2lake'
UNION ALL
SELECT 'TABLE', ARRAY['wal2lake', c.relname::text], pg_get_userbyid(c.relowner)::text, pg_has_role(c.relowner, 'USAGE')
FROM pg_class c WHERE c.relnamespace = to_regnamespace('wal2lake') AND c.relkind = 'r'
ORDER BY 1, 2
