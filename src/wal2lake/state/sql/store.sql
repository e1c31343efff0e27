-- name: store_exists
-- Not to_regclass: inside a transaction that waited for a lock it may not see what was made meanwhile.
SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'wal2lake' AND c.relname = 'version'

-- name: store_version
SELECT max(version) AS version FROM wal2lake.version

-- name: forget_store_version
-- Not DELETE: a table without a key takes none while it is in a publication of all tables.
TRUNCATE wal2lake.version

-- name: save_store_version
INSERT INTO wal2lake.version VALUES (%(version)s)

-- name: drop_store
DROP SCHEMA IF EXISTS wal2lake CASCADE

-- name: has_installation
-- Stores of older versions do not say whose they are.
SELECT to_regclass('wal2lake.installation') IS NOT NULL AS found

-- name: installation
SELECT id, place FROM wal2lake.installation

-- name: save_installation
INSERT INTO wal2lake.installation (id, place) VALUES (%(id)s, %(place)s)
ON CONFLICT (one) DO UPDATE SET id = excluded.id, place = excluded.place
