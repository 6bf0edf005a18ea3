"""Find out why a job failed: evidence, taxonomy, signatures, root cause, classifier. Pure."""
