"""The commands of `slurmwrap`, one module or package per command."""
