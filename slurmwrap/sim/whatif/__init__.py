"""What-if study: a site's own month, replayed under plain Slurm and under slurmwrap."""
