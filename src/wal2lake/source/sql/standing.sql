-- How far a slot has been read and confirmed, and what it keeps the server from removing.
SELECT s.active,
       r.write_lsn::text,
       s.confirmed_flush_lsn::text,
       greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn), 0)::int8,
       greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::int8
FROM pg_replication_slots s
LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
WHERE s.slot_name = %(slot)s
