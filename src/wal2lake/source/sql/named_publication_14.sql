-- Tables that a publication holds, where it can have neither row filters nor column lists nor schemas (14).
SELECT c.oid::int8, NULL, NULL, coalesce(pr.oid, p.oid)::int8, pr.oid IS NOT NULL
FROM pg_publication p
CROSS JOIN pg_class c
LEFT JOIN pg_publication_rel pr ON pr.prpubid = p.oid AND pr.prrelid = c.oid
WHERE p.pubname = %(name)s AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND (p.puballtables OR pr.oid IS NOT NULL)
