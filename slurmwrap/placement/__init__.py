"""Where a job should run and with how much: the PlacementPlan. Pure."""
