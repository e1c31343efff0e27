-- The buffers that are filled and that a publication names: what they are of comes in the stream.
SELECT b.relid::int8, b.generation, b.columns, b.layout, b.retired::text
FROM wal2lake_changes.buffers b
JOIN pg_class c ON c.relnamespace = to_regnamespace('wal2lake_changes')
     AND c.relname = 'changes_' || b.relid || CASE WHEN b.generation > 0 THEN '_' || b.generation ELSE '' END
JOIN pg_publication_rel r ON r.prrelid = c.oid
JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = %(publication)s AND b.retired IS NULL
