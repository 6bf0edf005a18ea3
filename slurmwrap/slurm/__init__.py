"""Edge: the only room that speaks to Slurm."""
