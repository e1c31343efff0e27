-- The row filter and the column list of one table in a publication, as PostgreSQL writes them (15 and later).
SELECT pg_get_expr(pr.prqual, pr.prrelid), pr.prattrs::text
FROM pg_publication_rel pr
WHERE pr.prpubid = %(publication)s::oid AND pr.prrelid = %(table)s::oid
