-- Size of each heap in blocks, from the file, and bytes per row with TOAST where statistics give the number of rows.
SELECT n.nspname::text, c.relname::text,
       ceil(pg_relation_size(c.oid) / current_setting('block_size')::numeric)::int8,
       CASE WHEN c.reltuples > 0
            THEN ceil((pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0))
                      / c.reltuples::numeric)::int8 END
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::oid[])
ORDER BY c.oid
