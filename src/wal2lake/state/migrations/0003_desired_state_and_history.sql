-- What commands have asked for, and what happened to each table.
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS kind text;
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS target_schema text;
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS target_name text;
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS replaces oid;
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS resync_round text;
UPDATE wal2lake.tables SET target_schema = schema_name, target_name = table_name WHERE target_name IS NULL;
CREATE TABLE IF NOT EXISTS wal2lake.table_wishes (
    oid oid PRIMARY KEY,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    wanted boolean,
    group_name text,
    paused boolean NOT NULL DEFAULT false,
    target_schema text,
    target_name text,
    copy boolean NOT NULL DEFAULT true,
    drop_lake boolean NOT NULL DEFAULT false,
    resumed_at timestamptz,
    moving_from text,
    handover_lsn pg_lsn,
    handed_lsn pg_lsn,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS wal2lake.group_wishes (
    name text PRIMARY KEY,
    made boolean NOT NULL,
    tables text[] NOT NULL DEFAULT '{}',
    exclude text[] NOT NULL DEFAULT '{}',
    flush_interval float8,
    flush_bytes bigint,
    enabled boolean NOT NULL DEFAULT true,
    dropping boolean NOT NULL DEFAULT false,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS wal2lake.history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name text NOT NULL,
    oid oid NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    at timestamptz NOT NULL,
    who text NOT NULL,
    before text,
    after text,
    detail text
);
CREATE INDEX IF NOT EXISTS history_of_a_table ON wal2lake.history (oid, id);
