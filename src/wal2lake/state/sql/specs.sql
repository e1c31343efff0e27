-- name: table_specs
SELECT * FROM wal2lake.desired_tables

-- name: inherit_spec
UPDATE wal2lake.desired_tables SET oid = %(successor)s, moving_from = NULL, handover_lsn = NULL, handed_lsn = NULL
WHERE oid = %(oid)s AND NOT EXISTS (SELECT FROM wal2lake.desired_tables other WHERE other.oid = %(successor)s)

-- name: want_resumed
INSERT INTO wal2lake.desired_tables (oid, schema_name, table_name, resumed_at)
VALUES (%(oid)s, %(schema)s, %(name)s, clock_timestamp())
ON CONFLICT (oid) DO UPDATE SET paused = false, resumed_at = excluded.resumed_at

-- name: lock_spec_of_dropped_lake_table
-- Whoever adds the table again waits for the end of the transaction.
SELECT FROM wal2lake.desired_tables WHERE oid = %(oid)s AND drop_lake AND NOT wanted FOR UPDATE

-- name: end_dropping_of_lake_table
UPDATE wal2lake.desired_tables SET drop_lake = false WHERE oid = %(oid)s

-- name: group_specs
SELECT * FROM wal2lake.desired_groups ORDER BY name

-- name: set_group_spec
INSERT INTO wal2lake.desired_groups (name, made, tables, exclude, flush_interval, flush_bytes, enabled, dropping)
VALUES (%(name)s, %(made)s, %(tables)s, %(exclude)s, %(flush_interval)s, %(flush_bytes)s, %(enabled)s, %(dropping)s)
ON CONFLICT (name) DO UPDATE SET made = excluded.made, tables = excluded.tables,
    exclude = excluded.exclude, flush_interval = excluded.flush_interval,
    flush_bytes = excluded.flush_bytes, enabled = excluded.enabled, dropping = excluded.dropping,
    updated_at = now()

-- name: keep_tables_moving_to_group
-- Tables on their way to a group that is forgotten stay where they are.
UPDATE wal2lake.desired_tables SET group_name = moving_from, moving_from = NULL, handover_lsn = NULL
WHERE group_name = %(group)s AND moving_from IS NOT NULL AND handed_lsn IS NULL

-- name: hand_tables_moving_from_group
-- Those on their way from it are copied where they go.
UPDATE wal2lake.desired_tables SET handed_lsn = '0/0' WHERE moving_from = %(group)s AND handed_lsn IS NULL

-- name: forget_group_spec
DELETE FROM wal2lake.desired_groups WHERE name = %(group)s

-- name: forget_tables_of_group
DELETE FROM wal2lake.tables WHERE group_name = %(group)s

-- name: forget_group_record
DELETE FROM wal2lake.groups WHERE name = %(group)s

-- name: forget_added_tables_of_group
DELETE FROM wal2lake.desired_tables WHERE group_name = %(group)s AND wanted
