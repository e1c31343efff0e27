-- Desired state under the name that the documents use.
ALTER TABLE wal2lake.table_wishes RENAME TO desired_tables;
ALTER TABLE wal2lake.group_wishes RENAME TO desired_groups;
