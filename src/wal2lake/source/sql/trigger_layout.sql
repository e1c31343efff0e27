-- The columns of tables as their buffers know them: number, name, type and typmod of each, in their order; empty for a
-- table without columns.
SELECT c.oid::int8, coalesce(string_agg(a.attnum || ' ' || quote_ident(a.attname) || ' ' || a.atttypid || ' ' || a.atttypmod, ',' ORDER BY a.attnum), '')
FROM pg_class c
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.oid = ANY (%(oids)s::oid[])
GROUP BY c.oid
