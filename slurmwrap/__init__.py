"""slurmwrap: tools for an unmodified Slurm that check jobs before they run and diagnose and retry those that fail."""

__version__ = "0.1.0"
