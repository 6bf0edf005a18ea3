"""gsub and slurmwrap: flags in, one flow called, output."""
