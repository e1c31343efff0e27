-- Heaps on which PostgreSQL refuses UPDATE and DELETE while they are published: those without a usable replica
-- identity, and those whose row filter or column list in a publication does not fit it. Takes no lock on them.
-- Foreign tables among the partitions are never published.
WITH RECURSIVE {partition_tree}, heap AS (
    SELECT t.root, c.oid, c.relnamespace, c.relname, c.relowner, c.relreplident,
           -- The index that RelationGetReplicaIndex finds.
           (SELECT i.indkey::int2[] FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indislive AND i.indisvalid AND i.indisunique AND i.indimmediate
              AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
            LIMIT 1) AS key,
           (SELECT bool_or(i.indimmediate AND i.indisvalid) FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indisprimary) AS primary_key,
           -- to_jsonb: 14 has neither row filters nor column lists.
           to_jsonb(pr) ->> 'prqual' AS filter, to_jsonb(pr) ->> 'prattrs' IS NOT NULL AS listed
    FROM tree t
    JOIN pg_class c ON c.oid = t.oid
    LEFT JOIN pg_publication_rel pr ON pr.prrelid = c.oid
          AND pr.prpubid = (SELECT p.oid FROM pg_publication p WHERE p.pubname = %(publication)s)
    WHERE t.relkind = 'r'
), judged AS (
    SELECT h.*, h.relreplident <> 'f' AND h.key IS NULL AS unidentified,
           CASE WHEN h.relreplident <> 'f' THEN (
               SELECT array_agg(DISTINCT a.attname::text)
               FROM regexp_matches(h.filter, ':varattno ([0-9]+)', 'g') AS var
               JOIN pg_attribute a ON a.attrelid = h.oid AND a.attnum = var[1]::int
               WHERE a.attnum <> ALL (coalesce(h.key, '{}'))) END AS outside
    FROM heap h
)
SELECT j.root::int8, n.nspname::text, j.relname::text, j.relreplident::text, j.primary_key, j.unidentified,
       coalesce(j.outside, '{}'), j.listed,
       ARRAY(SELECT a.attname::text FROM unnest(j.key) WITH ORDINALITY AS k (attnum, position)
             JOIN pg_attribute a ON a.attrelid = j.oid AND a.attnum = k.attnum ORDER BY k.position),
       pg_has_role(j.relowner, 'USAGE')
FROM judged j
JOIN pg_namespace n ON n.oid = j.relnamespace
WHERE j.unidentified OR j.outside IS NOT NULL OR (j.listed AND j.relreplident = 'f')
ORDER BY n.nspname, j.relname
