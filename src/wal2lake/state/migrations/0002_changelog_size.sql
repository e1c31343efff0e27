-- How full the change log is.
ALTER TABLE wal2lake.groups ADD COLUMN IF NOT EXISTS changelog_bytes bigint;
ALTER TABLE wal2lake.groups ADD COLUMN IF NOT EXISTS warning text;
