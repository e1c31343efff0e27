-- name: note_handover
-- The first position counts.
UPDATE wal2lake.desired_tables SET handover_lsn = %(position)s
WHERE oid = %(oid)s AND moving_from IS NOT NULL AND handover_lsn IS NULL

-- name: note_handed
UPDATE wal2lake.desired_tables SET handed_lsn = %(position)s, handed_epoch = %(epoch)s, handed_commit = %(commit)s
WHERE oid = %(oid)s AND moving_from = %(group)s

-- name: lock_handed_spec
SELECT FROM wal2lake.desired_tables
WHERE oid = %(oid)s AND group_name = %(group)s AND wanted AND moving_from IS NOT NULL AND handed_lsn IS NOT NULL
FOR UPDATE

-- name: end_move
UPDATE wal2lake.desired_tables SET moving_from = NULL, handover_lsn = NULL, handed_lsn = NULL WHERE oid = %(oid)s
