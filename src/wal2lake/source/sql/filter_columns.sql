-- Columns that the row filters of a publication's tables look at; an entry depends on those of its column list, too.
SELECT DISTINCT a.attname::text
FROM pg_publication_rel pr
JOIN pg_publication p ON p.oid = pr.prpubid
JOIN pg_depend d ON d.classid = 'pg_publication_rel'::regclass AND d.objid = pr.oid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid = pr.prrelid AND d.refobjsubid > 0
JOIN pg_attribute a ON a.attrelid = pr.prrelid AND a.attnum = d.refobjsubid
WHERE p.pubname = %(name)s
ORDER BY 1
