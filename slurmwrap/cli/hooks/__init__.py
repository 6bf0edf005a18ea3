"""`slurmwrap hooks`: the commands, the order of their steps, and what they tell."""
