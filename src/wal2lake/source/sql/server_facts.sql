-- What the server is and has room for: mirroring needs logical WAL, a free slot, a free sender and a few privileges.
SELECT current_setting('server_version_num')::int,
       current_setting('server_version'),
       current_setting('wal_level'),
       (SELECT system_identifier::text FROM pg_control_system()),
       CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::int END,
       pg_is_in_recovery(),
       current_database()::text,
       (SELECT oid::int8 FROM pg_database WHERE datname = current_database()),
       current_setting('server_encoding'),
       (SELECT count(*)::int FROM pg_replication_slots),
       current_setting('max_replication_slots')::int,
       (SELECT count(*)::int FROM pg_stat_replication),
       current_setting('max_wal_senders')::int,
       (SELECT setting::int FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       (SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'),
       current_user::text,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
         OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication' AND pg_has_role(oid, 'MEMBER')),
       has_database_privilege(current_database(), 'CREATE'),
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text
