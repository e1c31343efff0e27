-- The version that a lake table must have at least; the epochs of leases.
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS lake_epoch bigint NOT NULL DEFAULT 0;
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS lake_commit bigint NOT NULL DEFAULT 0;
ALTER TABLE wal2lake.table_wishes ADD COLUMN IF NOT EXISTS handed_epoch bigint NOT NULL DEFAULT 0;
ALTER TABLE wal2lake.table_wishes ADD COLUMN IF NOT EXISTS handed_commit bigint NOT NULL DEFAULT 0;
CREATE SEQUENCE IF NOT EXISTS wal2lake.epoch;
