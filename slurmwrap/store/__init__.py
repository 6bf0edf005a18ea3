"""Edge: what is kept. SQLite, the observation spool, the published files."""
