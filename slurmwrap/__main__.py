"""Run the program `slurmwrap` for `python -m slurmwrap`."""

from __future__ import annotations

from slurmwrap.cli.slurmwrap import main

if __name__ == "__main__":
    main()
