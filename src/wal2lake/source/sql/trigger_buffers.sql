-- The buffers of a lane, or of all, older forms of a table's columns first.
SELECT relid::int8, generation, columns, layout, retired::text
FROM wal2lake_changes.buffers WHERE %(lane)s::text IS NULL OR lane = %(lane)s ORDER BY relid, generation
