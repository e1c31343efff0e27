-- name: groups
SELECT * FROM wal2lake.groups ORDER BY name

-- name: save_group
INSERT INTO wal2lake.groups
    (name, state, holder, slot, capture, logged_lsn, error, remedy, warning, changelog_bytes, still_since)
VALUES (%(name)s, %(state)s, %(holder)s, %(slot)s, %(capture)s, %(logged_lsn)s, %(error)s, %(remedy)s, %(warning)s,
    %(changelog_bytes)s, %(still_since)s)
ON CONFLICT (name) DO UPDATE SET state = excluded.state, holder = excluded.holder,
    slot = excluded.slot, capture = excluded.capture,
    logged_lsn = coalesce(excluded.logged_lsn, groups.logged_lsn),
    error = excluded.error, remedy = excluded.remedy, warning = excluded.warning,
    changelog_bytes = excluded.changelog_bytes, still_since = excluded.still_since,
    updated_at = now()

-- name: has_groups
SELECT to_regclass('wal2lake.groups') IS NOT NULL

-- name: logged_lsn
SELECT logged_lsn::text FROM wal2lake.groups WHERE name = %(group)s
