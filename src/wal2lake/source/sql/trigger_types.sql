-- The names of types without modifiers (-1 and not NULL: character is one character, bpchar any number of them), and the
-- functions that give the text of their values.
SELECT t.oid::int8, format_type(t.oid, -1), t.typoutput::regproc::text FROM pg_type t WHERE t.oid = ANY (%(oids)s::oid[])
