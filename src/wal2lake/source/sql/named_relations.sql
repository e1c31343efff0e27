-- Relations by their names, for a stream that tells no more of them, and all that its publications have. Each fact with
-- the transaction that wrote it (xmin). A table's row type has its name and schema, and is written anew only when these
-- change; its entry in pg_class also changes with its privileges, its files and much else.
WITH chosen AS (
    SELECT pt.schemaname, pt.tablename,
           string_agg(concat(CASE WHEN p.pubinsert THEN 'I' END, CASE WHEN p.pubupdate THEN 'U' END,
                             CASE WHEN p.pubdelete THEN 'D' END, CASE WHEN p.pubtruncate THEN 'T' END), '') AS kinds
    FROM pg_publication_tables pt
    JOIN pg_publication p ON p.pubname = pt.pubname
    WHERE pt.pubname = ANY (%(publications)s::text[])
    GROUP BY pt.schemaname, pt.tablename
), named AS (
    SELECT schemaname::name, tablename::name
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS x (schemaname, tablename)
    UNION
    SELECT schemaname, tablename FROM chosen WHERE %(all)s
)
SELECT pg_current_snapshot()::text, c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text,
       c.relreplident::text, c.xmin::text::int8, t.xmin::text::int8, n.xmin::text::int8, coalesce(chosen.kinds, ''),
       (SELECT coalesce(array_agg(pr.xmin::text::int8), '{}')
        FROM pg_publication_rel pr
        JOIN pg_publication p ON p.oid = pr.prpubid
        WHERE p.pubname = ANY (%(publications)s::text[])
          AND (pr.prrelid = c.oid OR pr.prrelid IN (SELECT a.relid FROM pg_partition_ancestors(c.oid) AS a (relid)))),
       (SELECT jsonb_agg(jsonb_build_array(a.attnum, a.attname, a.atttypid::int8, format_type(a.atttypid, NULL),
                                           a.atttypmod, a.attgenerated, a.attisdropped, a.xmin::text::int8)
                         ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
       coalesce(i.xmin::text::int8, 0), coalesce((i.indkey::int2[])[0 : i.indnkeyatts - 1], '{}')::int[]
FROM (SELECT 1) AS always
LEFT JOIN (named
           JOIN pg_namespace n ON n.nspname = named.schemaname
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.tablename
           JOIN pg_type t ON t.oid = c.reltype) ON true
LEFT JOIN chosen ON chosen.schemaname = n.nspname AND chosen.tablename = c.relname
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
