-- The columns of tables as their buffers know them: number, name, type and typmod of each, in their order.
SELECT a.attrelid::int8, string_agg(a.attnum || ' ' || quote_ident(a.attname) || ' ' || a.atttypid || ' ' || a.atttypmod, ',' ORDER BY a.attnum)
FROM pg_attribute a
WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY a.attrelid
