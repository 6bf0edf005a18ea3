"""The user's newest runs for TAB: `SLURMWRAP_COMPLETE=jobs gsub` prints them as squeue does, since gsub starts fast.

Standard library only. Slurm is not asked, nothing is written, and what cannot be read is left out.
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
    """`ID|STATE|NAME` per line, newest first; an array is one job, and a job that is not judged yet has no state."""
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
    """Submissions that no reconcile has taken in."""
    found = []
    for content in state.fresh("submit"):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            told = json.loads(content)["facts"]["submission"]
            found.append((int(told["job_id"]), float(told["at"]), str(told.get("name", ""))))
    return found


def print_recent(environ: Mapping[str, str]) -> int:
    """The answer to TAB; never an error."""
    from slurmwrap.gsub import process_env

    with suppress(StoreError, OSError):
        process_env.write_stdout(list_recent_jobs(environ))
    return 0
