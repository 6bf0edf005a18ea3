"""Measure the size of a site's database, and the time of `slurmwrap report` and the list commands on it.

    python bench/synthetic_year --out /var/tmp/year.db            a year of 10,000 jobs a day: half an hour
    python bench/year.py --db /var/tmp/year.db

Without --db, a month of 200 jobs a day is generated first, which takes some seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from synthetic_year import fill

from slurmwrap.store.db_maintenance import Health, check

PERIODS = ("24h", "7d", "365d")
LISTS = ("jobs list --since 30d", "history --since 30d", "incidents list --since 400d", "why")
WHOLE = ("jobs list --since 30d --all", "jobs list --since 30d --all --json", "history --since 30d --all")
BUDGET_S, LIST_BUDGET_S, BUDGET_BYTES = 10.0, 2.0, 2 * 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, help="a database that is there")
    parser.add_argument("--format", default="html")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch) / "state"
        state.mkdir(mode=0o700)
        if given.db is None:
            fill(state / "site.db", days=30, jobs_per_day=200, until=time.time())
        else:
            (state / "site.db").symlink_to(given.db.resolve())
        found = check(state / "site.db", thorough=False)
        print(_size(found))
        for period in PERIODS:
            print(_timed(f"report --since {period} --format {given.format}", state, BUDGET_S))
        for words in LISTS:
            print(_timed(words, state, LIST_BUDGET_S))
        for words in WHOLE:
            print(_timed(words, state))


def _size(found: Health) -> str:
    runs = next(table.rows for table in found.tables if table.name == "attempts")
    days = ((found.last_run or 0) - (found.first_run or 0)) / 86_400
    used = found.bytes - found.free_bytes
    lines = [
        f"{found.bytes / 2**30:.2f} GiB ({used / 2**30:.2f} in use; budget for a year: {BUDGET_BYTES / 2**30:.0f} GiB),"
        f" {runs:,} runs of {days:.0f} days, {used / max(1, runs):.0f} bytes a run",
        *(f"  {table.name:16}{table.rows:>12,}{(table.bytes or 0) / 2**20:>10.1f} MiB" for table in found.tables[:8]),
        *(f"  ! {fault}" for fault in found.faults),
    ]
    return "\n".join(lines)


def _timed(words: str, state: Path, budget_s: float | None = None) -> str:
    environ = {**os.environ, "SLURMWRAP_SITE_STATE_DIR": str(state), "SLURMWRAP_CONFIG": "/nonexistent/config.toml"}
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", *words.split()]
    with tempfile.TemporaryFile() as told:
        began = time.monotonic()
        done = subprocess.run(argv, env=environ, stdout=told, stderr=subprocess.PIPE, timeout=600)
        took = time.monotonic() - began
        size = told.tell()
    if done.returncode:
        return f"{words}: exit code {done.returncode}: {done.stderr.decode().strip()}"
    budget = f" (budget: {budget_s:g} s)" if budget_s is not None else ""
    return f"{words}: {took:.2f} s, {size / 1000:,.0f} kB{budget}"


if __name__ == "__main__":
    main()
