"""Pre-run of a job on one GPU: static checks, the trial, protection of the user's files, and the verdict."""
