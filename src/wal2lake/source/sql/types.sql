-- Types with those beneath them, through domains and arrays. A true array is its element's own array type;
-- int2vector has elements too, but another text form.
WITH RECURSIVE wanted AS (
    SELECT unnest(%(oids)s::oid[]) AS oid
    UNION
    SELECT beneath
    FROM wanted w
    JOIN pg_type t ON t.oid = w.oid
    CROSS JOIN LATERAL (VALUES (t.typelem), (t.typbasetype)) AS b (beneath)
    WHERE beneath <> 0
)
SELECT t.oid::int8, t.typname::text, t.typtype::text,
       CASE WHEN e.oid IS NULL THEN 0 ELSE t.typelem::int8 END,
       t.typbasetype::int8, t.typtypmod, t.typndims::int, t.typdelim::text
FROM wanted w
JOIN pg_type t ON t.oid = w.oid
LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
