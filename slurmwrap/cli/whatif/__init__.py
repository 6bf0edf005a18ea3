"""`slurmwrap whatif`: replay the jobs of a site under plain Slurm and under slurmwrap, and show the result."""
