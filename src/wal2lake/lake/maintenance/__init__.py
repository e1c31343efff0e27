"""Maintenance: compaction, expiration, and removal of files that interrupted work has left."""
