-- Updated and deleted rows of each heap of a table, as the statistics have counted them since they were last reset.
WITH RECURSIVE {partition_tree}
SELECT t.root::int8, t.oid::int8, (pg_stat_get_tuples_updated(t.oid) + pg_stat_get_tuples_deleted(t.oid))::int8
FROM tree t
WHERE t.relkind <> 'p'
