-- Which lake the store belongs to.
CREATE TABLE IF NOT EXISTS wal2lake.installation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL,
    place text NOT NULL
);
