"""`slurmwrap completion`: the scripts, and the tables they are made of."""
