-- Columns in table order. attgenerated: '' ordinary, 's' stored (published by 18 and later), 'v' virtual (never).
-- attmissingval: what rows have that are older than the column; an array of one element, whatever its type.
SELECT a.attrelid::int8, a.attname::text, a.atttypid::int8, a.atttypmod, a.attndims::int, a.attnotnull,
       a.attgenerated::text, format_type(a.atttypid, a.atttypmod), a.attnum::int,
       CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END
FROM pg_attribute a
WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
