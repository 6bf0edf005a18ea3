"""Submit a job's retry job: a CPU job of seconds that waits until the job has failed, and then retries it.

A user without a site's reconciler has no process that notices the end of a job. The job itself cannot: it is over,
or its node is gone. So Slurm starts the user's reconciler (retry_job.py), by a dependency on the job's failure. If the
job completes, Slurm cancels the retry job before it starts.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from slurmwrap import package_files
from slurmwrap.errors import SlurmwrapError
from slurmwrap.gsub.submit_context import get_last_line
from slurmwrap.policy.requeue import RETRY_JOB_COMMENT
from slurmwrap.prerun.trial.trial_spec import make_trial_environ
from slurmwrap.protocols import SbatchCall
from slurmwrap.sbatch.rewrite import spell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slurmwrap.config.load_config import Config
    from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext
    from slurmwrap.protocols import SbatchResult, Slurm
    from slurmwrap.sbatch.job_request import JobRequest

# Options of the job that its retry job keeps: they say who pays and which cluster it is.
_KEPT_OPTIONS = ("account", "qos", "wckey")
# A pass of the reconciler uses about 100 MiB, and Slurm's default may be the whole node.
_MEMORY = "300M"
_TIME_LIMIT_MIN = 10
_RERUN_RULES = ("retry", "retry_elsewhere")


def start_retry_job(prepared: PreparedJob, job_id: int, context: SubmitContext) -> None:
    """Submit the retry job of a job whose user agreed to retries. A failure is reported, and the job is kept."""
    config = context.config
    if not (prepared.retry or prepared.retry_on) or prepared.request.hetjob:
        return
    if config.site.published:
        if not any(config.mode_of(rule) == "act" for rule in _RERUN_RULES):
            context.say(
                "--retry: the site's reconciler only reports what it would do (rules.retry); "
                f"slurmwrap why {job_id} prints the commands after a failure"
            )
        return
    if not config.retry.own_job or not any(config.for_own_jobs().mode_of(rule) == "act" for rule in _RERUN_RULES):
        return
    try:
        options = make_retry_job_options(prepared.request, config, context.memory.retry_job_output())
        result = submit_retry_job(str(job_id), options, context.slurm, context.environ)
        why_not = "" if result.job_id is not None else get_last_line(result.stderr)
    except (OSError, SlurmwrapError, KeyboardInterrupt) as error:
        why_not = str(error) or "interrupted"
    except Exception as error:
        # Slurm already has the job, so a bug in slurmwrap must not hide its job id from the user.
        why_not = f"{type(error).__name__}: {error}"
    if why_not:
        context.say(f"no job retries job {job_id} by itself ({why_not}); after a failure, slurmwrap why {job_id} does")


def make_retry_job_options(request: JobRequest, config: Config, output: str) -> tuple[str, ...]:
    """Return the options of sbatch for a retry job, without its dependency. It has no GPU and no --export."""
    partition = config.retry.partition or request.value("partition")
    kept = [spell(name, value) for name in _KEPT_OPTIONS if (value := request.value(name)) is not None]
    return (
        f"--job-name={request.job_name}.retry",
        f"--comment={RETRY_JOB_COMMENT}",
        "--chdir=/",
        "--ntasks=1",
        "--cpus-per-task=1",
        f"--mem={_MEMORY}",
        f"--time={_TIME_LIMIT_MIN}",
        "--requeue",
        f"--output={output}",
        "--open-mode=append",
        *([f"--partition={partition}"] if partition else []),
        *kept,
    )


def submit_retry_job(job_id: str, options: Sequence[str], slurm: Slurm, environ: Mapping[str, str]) -> SbatchResult:
    """Submit the retry job of `job_id`. `options`: those of make_retry_job_options, which it gets as arguments too."""
    script = package_files.shipped("templates") / "retry" / "retry_job.sh"
    depends = (f"--dependency=afternotok:{job_id}", "--kill-on-invalid-dep=yes")
    call = SbatchCall(
        options=("--parsable", *options, *depends),
        script_path=os.fspath(script),
        args=(job_id, *options),
        environ={**make_trial_environ(environ), "SLURMWRAP_PYTHON": sys.executable},
    )
    return slurm.sbatch(call)
