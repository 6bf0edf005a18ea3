"""What `slurmwrap why` prints of one job: its timeline, its runs, its retry budget and the next step."""
