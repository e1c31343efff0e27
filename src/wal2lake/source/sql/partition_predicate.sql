-- Which rows of the root are in this partition; a TRUNCATE of it removes them. The bounds of a default partition are
-- whatever its siblings leave, and may have changed since: NULL.
SELECT CASE WHEN NOT EXISTS (
           SELECT FROM pg_partition_ancestors(%(oid)s::oid) AS a(oid)
           JOIN pg_class c ON c.oid = a.oid
           WHERE pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT'
       ) THEN pg_get_partition_constraintdef(%(oid)s::oid) END
