"""What `make evaluation` runs: the simulator on the papers' loads, and docs/evaluation.md from what came out."""
