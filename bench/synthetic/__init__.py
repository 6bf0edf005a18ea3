"""Clusters that do not exist, in the words of Slurm: as text, and as a slurmctld without nodes."""
