tree AS (
    -- Tables and all that is a partition of theirs, without what is being detached. `levels`: from the partition up, with
    -- the transactions that made it, and what it is in, a member. (pg_partition_tree() waits for locks.)
    SELECT c.oid AS root, c.oid, c.relkind, NULL::oid AS parent, '{}'::int8[] AS levels, '{}'::int8[] AS since
    FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT t.root, c.oid, c.relkind, t.oid, c.oid::int8 || t.levels, i.xmin::text::int8 || t.since
    FROM tree t
    JOIN pg_inherits i ON i.inhparent = t.oid
    JOIN pg_class c ON c.oid = i.inhrelid
    WHERE t.relkind = 'p' AND c.relispartition AND NOT i.inhdetachpending
)