"""The program of a retry job (retry_submission.py): run the user's reconciler after their job failed.

The reconciler diagnoses the job and requeues it if the diagnosis, the retry budget and the user's consent allow it. The
job then waits for its next run, and this program submits the retry job of that run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.config.load_config import Config, find_user_state_dir, load
from slurmwrap.console import Console
from slurmwrap.errors import SlurmError, SlurmwrapError, StoreError
from slurmwrap.gsub.retry_submission import submit_retry_job
from slurmwrap.gsub.submit_context import get_last_line
from slurmwrap.host.lock import hold_exclusive_lock
from slurmwrap.host.user_account import find_user_name
from slurmwrap.protocols import Slurm
from slurmwrap.reconcile import reconcile_once
from slurmwrap.reconcile.wire_adapters import make_user_services
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.database import Database
from slurmwrap.store.user_state_files import DATABASE

# Seconds for all passes, within the time limit of the retry job, and seconds between two passes.
PATIENCE_S, PAUSE_S = 300.0, 2.0
# Outputs of retry jobs are removed after this time.
_OUTPUT_KEPT_S = 30 * 86400.0


def main(words: Sequence[str] | None = None) -> int:
    """Run passes until the job is judged, then submit its next retry job if it runs again. Return the exit code."""
    job_id, *options = sys.argv[1:] if words is None else words
    console = Console.of_terminal("slurmwrap")
    try:
        config = load(os.environ)
        slurm = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s)
        state = find_user_state_dir(os.environ)
        _remove_old_outputs(state / "retry")
        settled = wait_for_pass(lambda: run_pass(config, slurm, state, console.say), time.monotonic, time.sleep)
        if not settled:
            console.say(f"job {job_id} could not be judged; slurmwrap why {job_id} does it")
        if not is_unfinished(slurm, job_id, find_user_name(os.geteuid())):
            return 0
        result = submit_retry_job(job_id, options, slurm, os.environ)
    except (SlurmwrapError, OSError) as error:
        console.say(str(error))
        return 1
    if result.job_id is None:
        console.say(f"no retry job for the next run of job {job_id}: {get_last_line(result.stderr)}")
        return 1
    console.say(f"job {job_id} runs again; its retry job is {result.job_id}")
    return 0


def wait_for_pass(run: Callable[[], bool], clock: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Call `run` until it returns True, for PATIENCE_S at most; return whether it did."""
    until = clock() + PATIENCE_S
    while not run():
        if clock() >= until:
            return False
        sleep(PAUSE_S)
    return True


def run_pass(config: Config, slurm: SlurmCommands, state: Path, say: Callable[[str], None]) -> bool:
    """Run one pass of the user's reconciler. Return False if another process runs one, or if a run is still ending."""
    database = state / DATABASE
    try:
        with hold_exclusive_lock(database.with_suffix(".lock"), "another reconciler"), Database.open(database) as store:
            summary = reconcile_once(make_user_services(config, slurm, store, say, state))
    except (SlurmError, StoreError) as error:
        say(f"trying again: {error}")
        return False
    for line in summary.errors:
        say(line)
    return not summary.waiting


def is_unfinished(slurm: Slurm, job_id: str, user: str) -> bool:
    """Return whether Slurm shows a pending or running part of the user's job or array."""
    return any(not job.ended for job in slurm.jobs(user) if job_id in (str(job.job_id), str(job.array_job_id)))


def _remove_old_outputs(folder: Path) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > _OUTPUT_KEPT_S:
                path.unlink()


if __name__ == "__main__":
    sys.exit(main())
