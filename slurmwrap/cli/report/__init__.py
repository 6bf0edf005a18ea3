"""`slurmwrap report`: its figures, its outputs, and what the timer runs."""
