-- Tables by oid, with the columns of the primary key and of the replica identity's index, by name and in index order:
-- attribute numbers have holes where columns were dropped.
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
       (SELECT coalesce(array_agg(a.attname::text ORDER BY k.position), '{}')
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND i.indisprimary AND k.position <= i.indnkeyatts),
       (SELECT coalesce(array_agg(a.attname::text ORDER BY k.position), '{}')
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND i.indisreplident AND k.position <= i.indnkeyatts),
       CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid::int8 ELSE c.oid::int8 END,
       c.relnatts::int,
       (SELECT coalesce(array_agg(ARRAY[an.nspname::text, ac.relname::text] ORDER BY above.distance), '{}')
        FROM pg_partition_ancestors(c.oid) WITH ORDINALITY AS above (oid, distance)
        JOIN pg_class ac ON ac.oid = above.oid
        JOIN pg_namespace an ON an.oid = ac.relnamespace
        WHERE above.oid <> c.oid)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::oid[])
