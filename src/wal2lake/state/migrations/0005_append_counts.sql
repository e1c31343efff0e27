-- What PostgreSQL had counted when an append-only table was copied.
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS append_counts jsonb;
ALTER TABLE wal2lake.tables ADD COLUMN IF NOT EXISTS append_seen_at timestamptz;
