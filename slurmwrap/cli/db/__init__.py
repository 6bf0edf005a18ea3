"""`slurmwrap db`: the database itself."""
