"""The benchmark: what wal2lake does beside what people use otherwise, in one run on one machine."""
