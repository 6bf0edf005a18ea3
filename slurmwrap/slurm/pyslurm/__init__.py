"""Slurm through PySlurm, where it fits (docs/pyslurm.md). Optional: the commands can do everything that it does.

PySlurm runs in a separate child process (worker.py), because libslurm ends the process by fatal() when slurm.conf
is missing, may crash with another release than PySlurm's, supports one slurm.conf per process, and has no configurable
time-out. The child can be killed, and later requests then go to the commands.
"""
