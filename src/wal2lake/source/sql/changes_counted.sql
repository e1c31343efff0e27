-- Updated and deleted rows of each heap of a table, as the statistics have counted them since they were last reset.
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT t.root, c.oid, c.relkind
    FROM tree t
    JOIN pg_inherits i ON i.inhparent = t.oid
    JOIN pg_class c ON c.oid = i.inhrelid
    WHERE t.relkind = 'p' AND c.relispartition
)
SELECT t.root::int8, t.oid::int8, (pg_stat_get_tuples_updated(t.oid) + pg_stat_get_tuples_deleted(t.oid))::int8
FROM tree t
WHERE t.relkind <> 'p'
