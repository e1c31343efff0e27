-- The membership of a partition at each level, from the partition up: the partition, and the transaction that made it one.
WITH RECURSIVE up AS (
    SELECT i.inhrelid, i.inhparent, i.xmin, 1 AS level
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhrelid = %(oid)s AND c.relispartition
    UNION ALL
    SELECT i.inhrelid, i.inhparent, i.xmin, up.level + 1
    FROM up JOIN pg_inherits i ON i.inhrelid = up.inhparent JOIN pg_class c ON c.oid = i.inhrelid
    WHERE c.relispartition
)
SELECT inhrelid::int8, xmin::text::int8 FROM up ORDER BY level
