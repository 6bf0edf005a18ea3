"""Records that several packages share: cluster, jobs, runs, diagnoses, decisions, plans. Pure."""
