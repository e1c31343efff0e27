-- Who owns a table, and how the role could have the owner's rights.
SELECT pg_get_userbyid(c.relowner)::text,
       (SELECT o.rolsuper FROM pg_roles o WHERE o.oid = c.relowner),
       (SELECT r.rolinherit FROM pg_roles r WHERE r.rolname = current_user),
       current_setting('server_version_num')::int
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(name)s
