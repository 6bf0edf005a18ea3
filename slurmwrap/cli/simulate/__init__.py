"""`slurmwrap simulate`: traces under policies; its page, plots and failures."""
