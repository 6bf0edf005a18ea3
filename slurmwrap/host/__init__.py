"""Edge: the machine we run on. Processes, MUNGE, kernel log, the hooks' files."""
