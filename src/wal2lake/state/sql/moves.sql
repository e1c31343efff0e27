-- name: note_handover
-- The first position counts.
UPDATE wal2lake.desired_tables SET handover_lsn = %(position)s
WHERE oid = %(oid)s AND moving_from IS NOT NULL AND handover_lsn IS NULL

-- name: void_handovers
-- Returns the tables whose move has not ended.
UPDATE wal2lake.desired_tables
SET handover_lsn = NULL, handed_lsn = CASE WHEN handed_lsn IS NOT NULL THEN '0/0'::pg_lsn END
WHERE oid = ANY (%(oids)s::oid[]) AND group_name = %(group)s AND moving_from IS NOT NULL
RETURNING oid::int8

-- name: note_handed
UPDATE wal2lake.desired_tables
SET handed_lsn = CASE WHEN handover_lsn <= %(position)s THEN %(position)s ELSE '0/0' END::pg_lsn,
    handed_epoch = %(epoch)s, handed_commit = %(commit)s
WHERE oid = %(oid)s AND moving_from = %(group)s

-- name: lock_handed_spec
SELECT handed_lsn <> '0/0' AS positioned FROM wal2lake.desired_tables
WHERE oid = %(oid)s AND group_name = %(group)s AND wanted AND moving_from IS NOT NULL AND handed_lsn IS NOT NULL
FOR UPDATE

-- name: end_move
UPDATE wal2lake.desired_tables SET moving_from = NULL, handover_lsn = NULL, handed_lsn = NULL WHERE oid = %(oid)s
