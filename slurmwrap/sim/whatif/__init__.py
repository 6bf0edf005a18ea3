"""A site's own month, twice: under plain Slurm and under slurmwrap."""
