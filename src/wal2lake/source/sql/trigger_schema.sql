-- Where triggers put what they capture. A lane is a group's; a buffer belongs to one table and one form of its columns.
CREATE TABLE IF NOT EXISTS wal2lake_changes.lanes (
    lane text PRIMARY KEY,
    mark text,
    position pg_lsn,
    -- A copy asks that what it sees is drained by itself: an exported snapshot, and the position that it is to have.
    asked text,
    asked_snapshot text,
    asked_position pg_lsn,
    answered text,
    granted boolean NOT NULL DEFAULT false
);
CREATE TABLE IF NOT EXISTS wal2lake_changes.buffers (
    relid oid NOT NULL,
    generation int NOT NULL,
    lane text NOT NULL,
    columns jsonb NOT NULL,
    layout text NOT NULL,
    retired xid8,
    PRIMARY KEY (relid, generation)
);
