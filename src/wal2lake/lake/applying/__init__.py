"""Applying changes to lake tables: the result of a batch, and the commit that writes it."""
