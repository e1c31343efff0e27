-- What will be published for each mirrored table: the table itself, or the leaves of a partitioned one. A leaf has
-- grants of its own; to publish it, its root must be owned.
WITH RECURSIVE {partition_tree}
SELECT rn.nspname::text, r.relname::text, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
       has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'),
       has_schema_privilege(rn.oid, 'USAGE'),
       has_table_privilege(r.oid, 'SELECT'),
       pg_has_role(r.relowner, 'USAGE'),
       pg_get_userbyid(r.relowner)::text,
       (SELECT o.rolsuper FROM pg_roles o WHERE o.oid = r.relowner),
       row_security_active(c.oid),
       -- The size of the files waits for who has the table locked; that of the last VACUUM or ANALYZE does not.
       CASE WHEN %(measured)s THEN pg_table_size(c.oid)::int8
            ELSE (c.relpages + coalesce((SELECT o.relpages FROM pg_class o WHERE o.oid = c.reltoastrelid), 0))::int8
                 * current_setting('block_size')::int8 END
FROM tree t
JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class r ON r.oid = t.root
JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE t.relkind <> 'p'
ORDER BY n.nspname, c.relname
