"""Months that never were, for `slurmwrap whatif`: see month.py."""
