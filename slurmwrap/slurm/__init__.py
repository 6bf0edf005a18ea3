"""Slurm adapters: the only package that calls Slurm."""
