"""Synthetic months for `slurmwrap whatif`: see month.py."""
