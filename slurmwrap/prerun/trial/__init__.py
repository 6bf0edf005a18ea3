"""The trial: a job's script run on one GPU. Its setup, supervision, measurement and step counting."""
