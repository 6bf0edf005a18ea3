"""Replays of job traces on a real Slurm (slurmwrap lab), and a model of them: see bench/lab_replay.py."""
