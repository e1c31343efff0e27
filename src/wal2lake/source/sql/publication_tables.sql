-- Tables that a publication names; `narrowed` ones have a row filter or a column list (15 and later).
SELECT c.oid::int8, n.nspname::text, c.relname::text,
       to_jsonb(pr) ->> 'prqual' IS NOT NULL OR to_jsonb(pr) ->> 'prattrs' IS NOT NULL AS narrowed
FROM pg_publication_rel pr
JOIN pg_class c ON c.oid = pr.prrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE pr.prpubid = %(publication)s::oid
