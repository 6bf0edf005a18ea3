"""How large a site's database is, and how long `slurmwrap report` takes on it.

    python bench/synthetic_year --out /var/tmp/year.db            a year of 10,000 jobs a day: half an hour
    python bench/year.py --db /var/tmp/year.db

Without --db a month of 200 jobs a day is made first, which takes some seconds.
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

from slurmwrap.store.care import Health, check

PERIODS = ("24h", "7d", "365d")
BUDGET_S, BUDGET_BYTES = 10.0, 2 * 2**30


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
            print(_report(period, given.format, state))


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


def _report(period: str, form: str, state: Path) -> str:
    environ = {**os.environ, "SLURMWRAP_SITE_STATE_DIR": str(state), "SLURMWRAP_CONFIG": "/nonexistent/config.toml"}
    words = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "report", "--since", period, "--format", form]
    began = time.monotonic()
    told = subprocess.run(words, env=environ, capture_output=True, timeout=600)
    took = time.monotonic() - began
    if told.returncode:
        return f"report --since {period}: exit code {told.returncode}: {told.stderr.decode().strip()}"
    size = f"{len(told.stdout) / 1000:.0f} kB"
    return f"report --since {period} --format {form}: {took:.2f} s, {size} (budget: {BUDGET_S:g} s)"


if __name__ == "__main__":
    main()
