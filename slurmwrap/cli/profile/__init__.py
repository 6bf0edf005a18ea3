"""`slurmwrap profile`: list, show, draw, measure, import, export and remove resource profiles."""
