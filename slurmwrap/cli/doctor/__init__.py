"""`slurmwrap doctor`: a list of checks, each a small function that returns a CheckResult."""
