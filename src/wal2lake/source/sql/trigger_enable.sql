-- Has wal2lake's triggers on a table fire always, which only the owner of a table may do otherwise. A DBA creates it.
-- It enables nothing but statement-level triggers that call a SECURITY DEFINER function of the owner of the schema, on
-- tables on which that role has the privilege TRIGGER; so at that moment nothing runs with the rights of who writes.
CREATE FUNCTION wal2lake_changes.enable_always(relation oid) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $enable$
DECLARE
    ours name[];
    one name;
BEGIN
    SELECT array_agg(t.tgname) INTO ours
    FROM pg_trigger t
    JOIN pg_proc p ON p.oid = t.tgfoid
    JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE t.tgrelid = relation AND NOT t.tgisinternal AND t.tgenabled <> 'A'
      AND starts_with(t.tgname::text, 'wal2lake_')
      -- AFTER, FOR EACH STATEMENT, and without WHEN, which would be evaluated with the rights of who writes.
      AND t.tgtype::int & 67 = 0 AND t.tgqual IS NULL
      AND n.nspname = 'wal2lake_changes' AND p.prosecdef AND p.proowner = n.nspowner
      AND has_table_privilege(n.nspowner, t.tgrelid, 'TRIGGER');
    FOREACH one IN ARRAY coalesce(ours, '{}') LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', relation::regclass, one);
    END LOOP;
    -- The name of the table was read before it was locked.
    IF EXISTS (SELECT FROM pg_trigger t
               WHERE t.tgrelid = relation AND t.tgname = ANY (ours) AND t.tgenabled <> 'A') THEN
        RAISE EXCEPTION 'table % was renamed meanwhile', relation::regclass;
    END IF;
END
$enable$
