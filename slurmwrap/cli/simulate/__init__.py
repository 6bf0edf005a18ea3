"""`slurmwrap simulate`: replay traces under scheduling policies; its options, output, plots and failure study."""
