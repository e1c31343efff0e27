-- name: lock_until_commit
SELECT pg_advisory_xact_lock(%(class)s, %(object)s)

-- name: try_lease
-- Held by the session until it ends.
SELECT pg_try_advisory_lock(%(class)s, %(object)s) AS held

-- name: lease_holders
-- The session that holds a group, by the name that it gives itself.
SELECT l.pid, coalesce(a.application_name, 'another process') || ' (backend ' || l.pid || ')' AS holder
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.classid = %(class)s AND l.objid = %(object)s AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())

-- name: has_epochs
SELECT to_regclass('wal2lake.epoch') IS NOT NULL AS found

-- name: next_epoch
-- Of the clock, too: numbers must not go back when the database does.
SELECT setval('wal2lake.epoch', greatest(
    nextval('wal2lake.epoch'), %(above)s + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
)) AS epoch

-- name: has_leases
SELECT to_regclass('wal2lake.leases') IS NOT NULL AND to_regclass('wal2lake.requests') IS NOT NULL AS found

-- name: create_leases
CREATE SCHEMA IF NOT EXISTS wal2lake;
CREATE TABLE IF NOT EXISTS wal2lake.leases (
    group_name text PRIMARY KEY,
    token text NOT NULL,
    holder text NOT NULL,
    until timestamptz NOT NULL
);
CREATE SEQUENCE IF NOT EXISTS wal2lake.requests;

-- name: take_row
-- One statement, so that of several that want it one gets it.
INSERT INTO wal2lake.leases AS l VALUES (%(group)s, %(token)s, %(holder)s, clock_timestamp() + %(term)s * interval '1 s')
ON CONFLICT (group_name) DO UPDATE SET token = excluded.token, holder = excluded.holder, until = excluded.until
WHERE l.until < clock_timestamp() OR l.token = excluded.token
RETURNING token

-- name: confirm_row
UPDATE wal2lake.leases SET until = clock_timestamp() + %(term)s * interval '1 s'
WHERE group_name = %(group)s AND token = %(token)s AND until > clock_timestamp()
RETURNING token

-- name: own_row
SELECT FROM wal2lake.leases WHERE group_name = %(group)s AND token = %(token)s AND until > clock_timestamp()

-- name: release_row
DELETE FROM wal2lake.leases WHERE group_name = %(group)s AND token = %(token)s

-- name: row_holder
SELECT holder FROM wal2lake.leases WHERE group_name = %(group)s AND until > clock_timestamp()

-- name: count_requests
SELECT last_value + is_called::int AS requests FROM wal2lake.requests

-- name: count_request
SELECT nextval(to_regclass('wal2lake.requests'))
