-- Up to which transaction all had ended in the log, and the position that was acknowledged then. Both are of one moment
-- of the slot.
SELECT pg_current_snapshot()::text, s.catalog_xmin::text::int8, s.confirmed_flush_lsn::text
FROM pg_replication_slots s
WHERE s.slot_name = %(slot)s
