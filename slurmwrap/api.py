"""Use slurmwrap from Python: submit, explain, list and wait for jobs.

    from slurmwrap import api

    job = api.submit("train.sbatch", "--retry", args=["--lr", "3e-4"])
    run = api.wait(job.job_id)[-1]
    if run.state != "COMPLETED":
        print(api.why(job.job_id).next_steps)

Each function runs the command of the same name with --json, so results and permissions are those of the command line,
and a program that uses this module loads none of the rest. Errors are the exceptions of slurmwrap.errors. The fields
are those of docs/schemas; `document` has all of them, also those that a later version adds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmwrap import errors
from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.store.deserialize import record_from_json

__all__ = ["JobExplanation", "SubmittedJob", "history", "profile", "submit", "wait", "why"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job that gsub submitted. `prerun_job_id` None: it has no pre-run of its own."""

    job_id: int
    cluster: str
    prerun_job_id: int | None
    document: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplanation:
    """What `slurmwrap why` says about one job: its runs, oldest first, each with its diagnosis, and what to do next."""

    job: str
    runs: tuple[JobRun, ...]
    next_steps: Mapping[str, Any]
    document: Mapping[str, Any] = field(repr=False)


def submit(
    script: str | os.PathLike[str],
    *options: str,
    args: Sequence[str] = (),
    cwd: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> SubmittedJob:
    """Submit a batch script with gsub. `options`: of sbatch and gsub; `args`: of the script.

    SlurmwrapError if Slurm or gsub refuses the job. It is never submitted a second time.
    """
    plain = _run_json([sys.executable, str(_GSUB), "--json", *options, os.fspath(script), *args], cwd, environ)
    if plain.get("job_id") is None:
        raise SlurmwrapError(str(plain.get("error") or "no job was submitted"), exit_code=plain.get("exit_code"))
    return SubmittedJob(
        job_id=int(plain["job_id"]),
        cluster=str(plain.get("cluster", "")),
        prerun_job_id=(plain.get("prerun") or {}).get("job_id"),
        document=plain,
    )


def why(job: int | str, *, cluster: str = "", redact: bool = False) -> JobExplanation:
    """Explain one job, "81" or "77_2". `cluster`: whose job it is; "": the cluster whose Slurm answers on this host.

    `redact`: without names of users, hosts and directories, and without secrets.
    """
    of_cluster = ["--clusters", cluster] if cluster else []
    plain = _run_command("why", str(job), *of_cluster, *(["--redact"] if redact else []))
    return JobExplanation(
        job=str(plain.get("address", job)),
        runs=tuple(record_from_json(JobRun, run) for run in plain.get("attempts", ())),
        next_steps=plain.get("next") or {},
        document=plain,
    )


def history(
    *,
    since: str = "",
    until: str = "",
    user: str = "",
    name: str = "",
    cluster: str = "",
    failed: bool = False,
    limit: int = 50,
) -> tuple[JobRun, ...]:
    """Return runs, newest first. `since`, `until`: "24h", "7d" or a date; `name`: a pattern such as "sweep*"."""
    given = {"--since": since, "--until": until, "--user": user, "--name": name, "--clusters": cluster}
    given["--limit"] = str(limit)
    words = [word for option, value in given.items() if value for word in (option, value)]
    plain = _run_command("history", *words, *(["--failed"] if failed else []))
    return tuple(record_from_json(JobRun, run) for run in plain["runs"])


def profile(name: str | os.PathLike[str]) -> ResourceProfile:
    """Return the resource profile of a key or of a batch script. SlurmwrapError if there is none."""
    return record_from_json(ResourceProfile, _run_command("profile", "show", os.fspath(name)))


def wait(job: int | str, *, poll_s: float = 15.0, timeout_s: float | None = None) -> tuple[JobRun, ...]:
    """Wait until a job, or all tasks of an array, have ended; return its runs with their diagnoses, oldest first.

    TimeoutError after `timeout_s` seconds; the job goes on. A job that is requeued has not ended.
    """
    from slurmwrap.slurm.commands import SlurmCommands

    if poll_s <= 0:
        raise UsageError("poll_s must be positive")
    slurm = SlurmCommands(os.environ)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while any(not row.record.ended for row in slurm.watched(str(job))):
        left = poll_s if until is None else min(poll_s, until - time.monotonic())
        if left <= 0:
            raise TimeoutError(f"job {job} has not ended after {timeout_s:g} s")
        time.sleep(left)
    return why(job).runs


# The program gsub. The environment stays as it is, since sbatch gives it to the job.
_GSUB = Path(__file__).parent / "gsub" / "gsub_script.py"


def _run_command(*words: str) -> dict[str, Any]:
    # -P: a module in the working directory must not take the place of one of slurmwrap's.
    return _run_json([sys.executable, "-P", "-m", "slurmwrap.cli.slurmwrap", *words, "--json"], None, None)


def _run_json(
    argv: Sequence[str], cwd: str | os.PathLike[str] | None, environ: Mapping[str, str] | None
) -> dict[str, Any]:
    """Run a command and return its JSON document; raise its error."""
    done = subprocess.run(
        argv, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        plain = json.loads(done.stdout)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        last = done.stderr.strip().splitlines()[-1:] or [f"the command ended with {done.returncode}"]
        raise SlurmwrapError(last[0], exit_code=done.returncode or 70)
    if plain.get("kind") == "slurmwrap.error":
        kind = getattr(errors, str(plain.get("error")), SlurmwrapError)
        if not (isinstance(kind, type) and issubclass(kind, SlurmwrapError)):
            kind = SlurmwrapError
        error = kind(str(plain.get("message")))
        error.hint, error.exit_code = str(plain.get("hint", "")), int(plain.get("exit_code", 1))
        raise error
    return plain
