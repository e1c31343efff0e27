"""Spark itself: JVM, jars, settings, driver and sessions, and the meaning of its failures."""
