-- A publication and its options. to_jsonb: older servers lack the column for generated columns.
SELECT p.oid::int8, p.puballtables, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.pubviaroot,
       coalesce(to_jsonb(p) ->> 'pubgencols', 'n'),
       p.pubinsert AND p.pubtruncate AND NOT p.pubupdate AND NOT p.pubdelete,
       obj_description(p.oid, 'pg_publication')
FROM pg_publication p
WHERE p.pubname = %(name)s
