-- One statement's rows into the buffer. A row is copied only if the table still has the columns that the buffer was made
-- for; otherwise a mark (X) says that the table has to be re-copied, and the writer goes on. Under a snapshot of the
-- whole transaction the catalog may be older than the rows, so names and types are compared with the rows themselves.
-- All rows of a statement have one number, which is drawn once: truncations alone have a place among statements. The
-- variables are qualified, because the table may have columns of any name. What a partition has after its DETACH is not
-- of the table any more; its triggers go later.
-- A column that is dropped stays in pg_attribute, without a type, so that whatever differs is a row there.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER {settings} AS $capture$
<<wal2lake>>
DECLARE
    xid xid8;
    number bigint;
BEGIN
    IF {detached} THEN
        RETURN NULL;
    ELSIF TG_OP = 'TRUNCATE' THEN
        INSERT INTO {buffer} (op) VALUES ({truncated});
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT FROM wal2lake_old) THEN
            RETURN NULL;
        END IF;
    ELSIF NOT EXISTS (SELECT FROM wal2lake_new) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = {oid} AND a.attnum > 0
               AND (a.attname = ({all_names})[a.attnum] AND a.atttypid = ({all_types})[a.attnum]
                    AND a.atttypmod = ({all_typmods})[a.attnum]) IS NOT TRUE) THEN
        INSERT INTO {buffer} (op) VALUES ('X');
        RETURN NULL;
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        IF EXISTS (SELECT FROM generate_series(1, {highest} + 1) AS s (number)
                   WHERE (pg_identify_object_as_address('pg_class'::regclass, {oid}, s.number)).object_names[3]
                   IS DISTINCT FROM ({names}::text[])[s.number]) THEN
            INSERT INTO {buffer} (op) VALUES ('X');
            RETURN NULL;
        END IF;
        IF TG_OP = 'DELETE' THEN
            IF (SELECT {types} FROM wal2lake_old n LIMIT 1) IS DISTINCT FROM {oids}::regtype[] THEN
                INSERT INTO {buffer} (op) VALUES ('X');
                RETURN NULL;
            END IF;
        ELSIF (SELECT {types} FROM wal2lake_new n LIMIT 1) IS DISTINCT FROM {oids}::regtype[] THEN
            INSERT INTO {buffer} (op) VALUES ('X');
            RETURN NULL;
        END IF;
    END IF;
    wal2lake.xid := pg_current_xact_id();
    wal2lake.number := nextval({numbers});
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO {buffer} (id, xid, {into}op) OVERRIDING SYSTEM VALUE
        SELECT wal2lake.number, wal2lake.xid, {values}'D' FROM wal2lake_old n;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO {buffer} (id, xid, {into}op) OVERRIDING SYSTEM VALUE
        SELECT wal2lake.number, wal2lake.xid, {values}'I' FROM wal2lake_new n;
    END IF;
    RETURN NULL;
END
$capture$
