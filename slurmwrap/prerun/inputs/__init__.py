"""The complete read of a job's input files: which files they are, the checks of their formats, results kept."""
