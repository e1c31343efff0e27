-- name: tables
SELECT * FROM wal2lake.tables
WHERE %(group)s::text IS NULL OR group_name = %(group)s
ORDER BY group_name, schema_name, table_name

-- name: insert_tables
-- Part of the two below: however many tables are one statement.
INSERT INTO wal2lake.tables AS t (group_name, oid, schema_name, table_name, state, mode, applied_lsn, rows,
    changes_applied, last_commit_at, behind_since, error, remedy, retry_at, failures, kind, target_schema, target_name,
    lake_epoch, lake_commit)
SELECT * FROM jsonb_to_recordset(%(tables)s) AS given (
    "group" text, oid oid, schema text, name text, state text, mode text, applied_lsn pg_lsn, rows bigint,
    changes_applied bigint, last_commit_at timestamptz, behind_since timestamptz, error text, remedy text,
    retry_at timestamptz, failures int, kind text, target_schema text, target_name text,
    lake_epoch bigint, lake_commit bigint
)

-- name: save_tables
{insert_tables}
ON CONFLICT (group_name, oid) DO UPDATE SET
    schema_name = excluded.schema_name, table_name = excluded.table_name, state = excluded.state,
    mode = excluded.mode, applied_lsn = excluded.applied_lsn, rows = excluded.rows,
    changes_applied = excluded.changes_applied, last_commit_at = excluded.last_commit_at,
    behind_since = excluded.behind_since, error = excluded.error, remedy = excluded.remedy,
    retry_at = excluded.retry_at, failures = excluded.failures, kind = excluded.kind,
    target_schema = excluded.target_schema, target_name = excluded.target_name,
    lake_epoch = excluded.lake_epoch, lake_commit = excluded.lake_commit,
    updated_at = now()

-- name: claim_tables
-- A table that any group has stays that group's.
{insert_tables}
WHERE NOT EXISTS (SELECT FROM wal2lake.tables held WHERE held.oid = given.oid)
RETURNING oid

-- name: forget_tables
DELETE FROM wal2lake.tables WHERE group_name = %(group)s AND oid = ANY (%(oids)s::oid[])

-- name: append_counts
SELECT oid, append_counts, append_seen_at FROM wal2lake.tables
WHERE group_name = %(group)s AND append_counts IS NOT NULL

-- name: count_appends
UPDATE wal2lake.tables SET append_counts = %(counts)s, append_seen_at = NULL
WHERE group_name = %(group)s AND oid = %(oid)s

-- name: updates_seen
UPDATE wal2lake.tables SET append_seen_at = clock_timestamp()
WHERE group_name = %(group)s AND oid = %(oid)s AND append_seen_at IS NULL

-- name: retry_now
-- One that is not running reads from here whether its time has come.
UPDATE wal2lake.tables SET retry_at = now() WHERE oid = %(oid)s AND retry_at IS NOT NULL
