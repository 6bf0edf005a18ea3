"""What the static stage looks at, one file per kind of check; static.py runs them in turn under one deadline."""
