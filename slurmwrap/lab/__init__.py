"""The lab: a real Slurm with many nodes and simulated GPUs on one machine."""
