"""Synthetic clusters: as the text that Slurm's commands would print, and as a slurmctld without slurmds."""
