-- Owners and schemas of partitioned tables on whose partitions to come the role would lack a privilege.
SELECT n.nspname::text, pg_get_userbyid(c.relowner)::text, min(c.relname::text)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s) AND c.relkind = 'p'
  AND NOT pg_has_role(c.relowner, 'USAGE')
  AND NOT (%(privilege)s = 'SELECT' AND pg_has_role('pg_read_all_data', 'USAGE'))
  AND NOT EXISTS (
    SELECT FROM pg_default_acl d, aclexplode(d.defaclacl) a
    WHERE d.defaclrole = c.relowner AND d.defaclnamespace IN (0, n.oid) AND d.defaclobjtype = 'r'
      AND a.privilege_type = %(privilege)s AND (a.grantee = 0 OR pg_has_role(a.grantee, 'USAGE')))
GROUP BY 1, 2 ORDER BY 1, 2
