"""The run of a job on one GPU: what is set up, supervised, measured and counted."""
