"""`slurmwrap profile`: what jobs need: kept, shown, drawn, measured."""
