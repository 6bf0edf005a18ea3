"""Static checks of a job, one file per kind of check; static_stage.py runs them in turn under one deadline."""
