-- The types of all columns of the tables that a publication names, or of all tables. Those that it holds by their schema
-- are not among them, and buffers of triggers are not: who reads them knows their types. Only catalogs are read: the
-- view of published tables would wait for whoever alters one.
SELECT DISTINCT a.atttypid::int8, a.atttypmod
FROM pg_publication p
JOIN pg_class c ON c.relkind IN ('r', 'p') AND c.oid >= 16384
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE p.pubname = %(name)s
  AND c.relnamespace IS DISTINCT FROM to_regnamespace('wal2lake_changes')
  AND (p.puballtables OR c.oid IN (SELECT prrelid FROM pg_publication_rel WHERE prpubid = p.oid))
