"""`slurmwrap watch`: read a job's status, explain why it waits, and show both on the terminal."""
