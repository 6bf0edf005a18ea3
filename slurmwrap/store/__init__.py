"""Stored data (adapters): the SQLite database, the spool of observations, and the published files."""
