-- Tables that a publication holds, with the row filter and the column list that it has for them (15 and later).
-- A table that it holds by its schema, too, is held whole. The fourth column identifies the entry, the last
-- one whether it is held by its name. To read a filter waits for who has its table locked, so that only those that are
-- asked for are read.
SELECT c.oid::int8,
       CASE WHEN pn.oid IS NULL AND c.oid = ANY (%(filters)s::oid[]) THEN pg_get_expr(pr.prqual, pr.prrelid) END,
       CASE WHEN pn.oid IS NULL THEN pr.prattrs::int2[] END,
       coalesce(pn.oid, pr.oid, p.oid)::int8,
       pr.oid IS NOT NULL
FROM pg_publication p
CROSS JOIN pg_class c
LEFT JOIN pg_publication_rel pr ON pr.prpubid = p.oid AND pr.prrelid = c.oid
LEFT JOIN pg_publication_namespace pn ON pn.pnpubid = p.oid AND pn.pnnspid = c.relnamespace
WHERE p.pubname = %(name)s AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND (p.puballtables OR pr.oid IS NOT NULL OR pn.oid IS NOT NULL)
