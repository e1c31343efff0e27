-- Tables by oid, with the columns of the primary key and of the replica identity's index, by name and in index order:
-- attribute numbers have holes where columns were dropped. A deferrable or invalid key does not identify rows. Of a
-- partition, the columns that decide which partition a row is in, at every level above; an expression is NULL there.
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
       (SELECT coalesce(array_agg(a.attname::text ORDER BY k.position), '{}')
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate AND k.position <= i.indnkeyatts),
       (SELECT coalesce(array_agg(a.attname::text ORDER BY k.position), '{}')
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid AND i.indimmediate AND k.position <= i.indnkeyatts),
       CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid::int8 ELSE c.oid::int8 END,
       c.relnatts::int,
       (SELECT coalesce(array_agg(ARRAY[an.nspname::text, ac.relname::text] ORDER BY above.distance), '{}')
        FROM pg_partition_ancestors(c.oid) WITH ORDINALITY AS above (oid, distance)
        JOIN pg_class ac ON ac.oid = above.oid
        JOIN pg_namespace an ON an.oid = ac.relnamespace
        WHERE above.oid <> c.oid),
       coalesce((SELECT i.indexrelid::int8 FROM pg_index i
                 WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate), 0),
       (SELECT coalesce(array_agg(DISTINCT a.attname::text), '{}')
        FROM pg_partition_ancestors(c.oid) AS above (oid)
        JOIN pg_partitioned_table p ON p.partrelid = above.oid
        CROSS JOIN LATERAL unnest(p.partattrs::int2[]) AS k (attnum)
        LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum AND k.attnum > 0
        WHERE above.oid <> c.oid)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::oid[])
