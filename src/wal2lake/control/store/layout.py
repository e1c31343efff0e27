"""The tables of the state store, and how a store of an older version becomes one of this."""

from __future__ import annotations

LATEST = 7

CREATE = """
CREATE SCHEMA IF NOT EXISTS wal2lake;
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
"""

# Each step may be taken again, so that one that was cut off does no harm.
UPGRADES = {
    2: """
ALTER TABLE wal2lake.groups ADD COLUMN IF NOT EXISTS changelog_bytes bigint;
ALTER TABLE wal2lake.groups ADD COLUMN IF NOT EXISTS warning text;
""",
    3: """
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
""",
    4: """
ALTER TABLE wal2lake.groups ADD COLUMN IF NOT EXISTS still_since timestamptz;
""",
    5: """
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS append_counts jsonb;
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS append_seen_at timestamptz;
""",
    6: """
CREATE TABLE IF NOT EXISTS wal2lake.installation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL,
    place text NOT NULL
);
""",
    7: """
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS lake_epoch bigint NOT NULL DEFAULT 0;
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS lake_commit bigint NOT NULL DEFAULT 0;
ALTER TABLE wal2lake.table_wishes ADD COLUMN IF NOT EXISTS handed_epoch bigint NOT NULL DEFAULT 0;
ALTER TABLE wal2lake.table_wishes ADD COLUMN IF NOT EXISTS handed_commit bigint NOT NULL DEFAULT 0;
CREATE SEQUENCE IF NOT EXISTS wal2lake.epoch;
""",
}
