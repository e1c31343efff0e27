-- What will be published for each wanted table: the table itself, or the leaves of a partitioned one. A leaf has
-- grants of its own; to publish it, its root must be owned.
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT t.root, c.oid, c.relkind
    FROM tree t
    JOIN pg_inherits i ON i.inhparent = t.oid
    JOIN pg_class c ON c.oid = i.inhrelid
    WHERE t.relkind = 'p' AND c.relispartition
)
SELECT rn.nspname::text, r.relname::text, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
       has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'),
       has_schema_privilege(rn.oid, 'USAGE'),
       has_table_privilege(r.oid, 'SELECT'),
       pg_has_role(r.relowner, 'USAGE'),
       pg_get_userbyid(r.relowner)::text,
       (SELECT o.rolsuper FROM pg_roles o WHERE o.oid = r.relowner),
       row_security_active(c.oid),
       -- It waits for who has the table locked.
       CASE WHEN %(sized)s THEN pg_table_size(c.oid)::int8 ELSE 0 END
FROM tree t
JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class r ON r.oid = t.root
JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE t.relkind <> 'p'
ORDER BY n.nspname, c.relname
