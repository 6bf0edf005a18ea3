"""Measure the pre-run on public training scripts with seeded bugs: python -m bench.prerun_rounds."""
