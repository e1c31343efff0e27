"""Lake tables in Apache Iceberg: the catalog, the tables, their metadata."""
