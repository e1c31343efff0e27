-- What the catalog adds to the text of values, for each of some types and all that they are made of: labels of enums and
-- attributes of composites. ALTER TYPE changes them without a row in the WAL. xmin and cmin reveal a change that was
-- taken back; those of a type that was never altered are all the same.
WITH RECURSIVE parts AS (
    SELECT given AS root, given AS oid FROM unnest(%(oids)s::oid[]) AS given
    UNION
    SELECT p.root, beneath
    FROM parts p
    JOIN pg_type t ON t.oid = p.oid
    LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
    CROSS JOIN LATERAL (
        VALUES (t.typelem), (t.typbasetype), (r.rngsubtype)
        UNION ALL
        SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS b (beneath)
    WHERE beneath <> 0
)
SELECT p.root::int8, p.oid::int8, true, concat_ws(' ', e.oid, e.xmin, e.enumlabel), concat_ws(' ', e.xmin, e.cmin)
FROM parts p
JOIN pg_enum e ON e.enumtypid = p.oid
UNION ALL
SELECT p.root::int8, p.oid::int8, false, concat_ws(' ', a.attnum, a.atttypid, a.atttypmod, a.attisdropped),
       concat_ws(' ', a.xmin, a.cmin)
FROM parts p
JOIN pg_type t ON t.oid = p.oid AND t.typtype = 'c'
JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
ORDER BY 1, 2, 4
