"""Rows that are copied from the source: the initial copy, and the exchange of single partitions."""
