"""A real Slurm with many nodes and GPUs on one machine."""
