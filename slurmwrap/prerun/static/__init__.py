"""What the static stage looks at, one file per kind of check; static_stage.py runs them in turn under one deadline."""
