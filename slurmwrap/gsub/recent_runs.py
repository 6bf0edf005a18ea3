"""List the user's newest jobs for shell completion: `SLURMWRAP_COMPLETE=jobs gsub`, because gsub starts fast.

Standard library only. It calls no Slurm command, writes nothing, and skips what cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from slurmwrap.config.load_config import find_state_dir
from slurmwrap.errors import StoreError
from slurmwrap.escape import visible
from slurmwrap.store.user_state_files import UserState

_SHOWN = 30


def list_recent_jobs(environ: Mapping[str, str]) -> str:
    """Return one line `ID|STATE|NAME` per job, newest first. An array is one job; an undiagnosed job has no state."""
    state = UserState(find_state_dir(environ))
    found: dict[int, tuple[float, str, str]] = {}
    for job_id, at, name in (*state.newest_submissions(_SHOWN), *_list_spooled_submissions(state)):
        found[job_id] = max(found.get(job_id, (0.0, "", "")), (at, "", name))
    for address, at, name, ended in state.newest_runs(_SHOWN):
        head = address.split("_")[0]
        if head.isdecimal():
            seen = found.get(int(head), (0.0, "", ""))
            found[int(head)] = (max(seen[0], at), seen[1] or ended, name or seen[2])
    newest = sorted(found, key=lambda job_id: found[job_id][0], reverse=True)[:_SHOWN]
    return "".join(f"{job_id}|{found[job_id][1]}|{visible(found[job_id][2])}\n" for job_id in newest)


def _list_spooled_submissions(state: UserState) -> list[tuple[int, float, str]]:
    """Return (job id, time, name) of submissions in the spool that no reconcile has read yet."""
    found = []
    for content in state.fresh("submit"):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            record = json.loads(content)["facts"]["submission"]
            found.append((int(record["job_id"]), float(record["at"]), str(record.get("name", ""))))
    return found


def print_recent(environ: Mapping[str, str]) -> int:
    """Print the jobs for completion. Always return 0: completion must not print errors."""
    from slurmwrap.gsub import process_env

    with suppress(StoreError, OSError):
        process_env.write_stdout(list_recent_jobs(environ))
    return 0
