-- The columns of tables as a trigger function compares them: number, name, type and typmod of each, in their order.
-- The function that is installed has the same expression, which shows that a table was altered.
SELECT a.attrelid::int8, string_agg(a.attnum || ' ' || quote_ident(a.attname) || ' ' || a.atttypid || ' ' || a.atttypmod, ',' ORDER BY a.attnum)
FROM pg_attribute a
WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY a.attrelid
