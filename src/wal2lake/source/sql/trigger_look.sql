-- The position and what can be seen: the position is read first, so that all that committed below it can be seen then.
SELECT pg_current_wal_insert_lsn()::text, l.asked, l.asked_snapshot, l.asked_position::text, l.answered
FROM wal2lake_changes.lanes l WHERE l.lane = %(lane)s
