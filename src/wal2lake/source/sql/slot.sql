-- One slot. to_jsonb: older servers lack the reason of an invalidation (17) and `conflicting` (16).
SELECT s.slot_name::text, s.plugin::text, s.database::text, s.temporary, s.active_pid,
       s.confirmed_flush_lsn::text, s.restart_lsn::text, s.wal_status,
       coalesce(to_jsonb(s) ->> 'invalidation_reason',
                CASE WHEN to_jsonb(s) ->> 'conflicting' = 'true' THEN 'it conflicted with recovery' END),
       CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE greatest(0, pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn))::int8 END,
       (SELECT a.application_name FROM pg_stat_activity a WHERE a.pid = s.active_pid)
FROM pg_replication_slots s
WHERE s.slot_name = %(name)s
