"""`slurmwrap metrics`: figures for Prometheus, and where they are read."""
