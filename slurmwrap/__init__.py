"""slurmwrap: a closed loop around an unmodified Slurm, from submission to the morning after."""

__version__ = "0.1.0"
