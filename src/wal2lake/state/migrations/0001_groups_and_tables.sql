-- How each group and table stands; people query it.
-- A role that may not create schemas may not run CREATE SCHEMA IF NOT EXISTS either, even if a DBA has made the schema.
DO $$ BEGIN IF to_regnamespace('wal2lake') IS NULL THEN CREATE SCHEMA wal2lake; END IF; END $$;
CREATE TABLE IF NOT EXISTS wal2lake.version (version int NOT NULL);
CREATE TABLE IF NOT EXISTS wal2lake.groups (
    name text PRIMARY KEY,
    state text NOT NULL,
    holder text,
    slot text NOT NULL,
    capture text NOT NULL,
    logged_lsn pg_lsn,
    error text,
    remedy text,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS wal2lake.tables (
    group_name text NOT NULL,
    oid oid NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    state text NOT NULL,
    mode text NOT NULL,
    applied_lsn pg_lsn,
    rows bigint,
    changes_applied bigint NOT NULL DEFAULT 0,
    last_commit_at timestamptz,
    behind_since timestamptz,
    error text,
    remedy text,
    retry_at timestamptz,
    failures int NOT NULL DEFAULT 0,
    resync_wanted timestamptz DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_name, oid)
);
