-- name: add_history
INSERT INTO wal2lake.history (group_name, oid, schema_name, table_name, at, who, before, after, detail)
SELECT * FROM jsonb_to_recordset(%(entries)s) AS given (
    "group" text, oid oid, schema text, name text, at timestamptz, who text, before text, after text, detail text
)

-- name: forget_history
DELETE FROM wal2lake.history h
USING (SELECT DISTINCT unnest(%(oids)s::oid[]) AS oid) touched
WHERE h.oid = touched.oid AND h.id <= (
    SELECT id FROM wal2lake.history older WHERE older.oid = touched.oid ORDER BY id DESC OFFSET %(kept)s LIMIT 1
)

-- name: history
SELECT * FROM wal2lake.history WHERE oid IN (
    SELECT oid FROM wal2lake.history WHERE schema_name = %(schema)s AND table_name = %(name)s
    UNION SELECT oid FROM wal2lake.tables WHERE schema_name = %(schema)s AND table_name = %(name)s
) ORDER BY at, id
