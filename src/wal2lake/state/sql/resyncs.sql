-- name: resync_time
-- Also if the clock went back: a request that is not later than the one being served would end with it.
SELECT greatest(clock_timestamp(), max(resync_wanted) + interval '1 microsecond') AS requested
FROM wal2lake.tables WHERE oid = ANY (%(oids)s::oid[])

-- name: want_resync
UPDATE wal2lake.tables SET resync_wanted = %(requested)s, resync_round = %(together)s
WHERE group_name = %(group)s AND oid = %(oid)s

-- name: wanted_resyncs
SELECT oid, resync_wanted FROM wal2lake.tables WHERE group_name = %(group)s AND resync_wanted IS NOT NULL

-- name: resync_rounds
SELECT oid, resync_round FROM wal2lake.tables
WHERE group_name = %(group)s AND resync_round IS NOT NULL AND resync_wanted IS NOT NULL

-- name: end_resync
UPDATE wal2lake.tables SET resync_wanted = NULL
WHERE group_name = %(group)s AND oid = %(oid)s AND resync_wanted <= %(wanted)s

-- name: cancel_resyncs
UPDATE wal2lake.tables SET resync_wanted = NULL
WHERE oid = ANY (%(oids)s::oid[]) AND (%(group)s::text IS NULL OR group_name = %(group)s)

-- name: resync_since
SELECT coalesce(resync_wanted, now()) AS wanted FROM wal2lake.tables WHERE oid = %(oid)s AND group_name = %(group)s

-- name: copy_from_now_on
-- A table may begin without its rows once; whatever needs a copy later needs them.
UPDATE wal2lake.desired_tables SET copy = true WHERE oid = %(oid)s AND NOT copy
