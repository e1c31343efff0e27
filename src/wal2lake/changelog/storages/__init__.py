"""Implementations of `LogStorage`, and the choice between them."""
