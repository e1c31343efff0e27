-- Since when nothing is captured.
ALTER TABLE wal2lake.groups ADD COLUMN IF NOT EXISTS still_since timestamptz;
