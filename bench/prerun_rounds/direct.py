"""One pre-run without Slurm: the static stage, then the trial and its verdict, as gsub and the pre-run's job do them.

    python direct.py DIRECTORY TRIAL_DIRECTORY        prints the JSON of `gsub --prerun=only --json`

One process per pre-run, as on a node. Slurm's own checks and the resources of the cluster are left out.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from slurmwrap.config import load_config
from slurmwrap.diagnosis.classifier import make_classifier
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.prepare import describe, make_static_verdict
from slurmwrap.gsub.verdict_output import print_alone
from slurmwrap.host.run_command import run
from slurmwrap.model.finding import Severity
from slurmwrap.model.verdict import Verdict
from slurmwrap.prerun.static import job_inputs, static_stage
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_environment import select_passed_on
from slurmwrap.prerun.trial.trial_spec import (
    TrialSpec,
    compute_trial_shape,
    count_trial_gpus,
    count_trial_tasks,
    is_memory_shrunk,
    list_missing_variables,
)
from slurmwrap.prerun.verdict.judge_trial import judge
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request

JOB = "job.sbatch"


def find_verdict(directory: Path, trial_dir: Path, environ: Mapping[str, str]) -> Verdict:
    """Return the verdict of the job in `directory`. `trial_dir` is new and stays behind."""
    request = parse_request(
        ["--prerun=only", JOB],
        environ=environ,
        cwd=str(directory),
        read_script=lambda path: Path(path).read_bytes(),
        read_stdin=lambda: b"",
    )
    passed_on = select_passed_on(request, environ, str(directory))
    began = time.monotonic()
    findings = static_stage.check(request, run=run, environ=passed_on)
    errors = [describe(found) for found in findings if found.severity is Severity.ERROR]
    if errors:
        return make_static_verdict(findings, errors[0], time.monotonic() - began)
    spec = make_spec(request, trial_dir, passed_on)
    classify = make_classifier(load_config.load(environ).diagnosis.signatures)
    began = time.monotonic()
    verdict = judge(spec, run_trial(spec, environ={**passed_on, **make_slurm_variables(request, spec)}), classify)
    return replace(verdict, seconds=verdict.seconds or round(time.monotonic() - began, 3))


def make_spec(request: JobRequest, trial_dir: Path, environ: Mapping[str, str]) -> TrialSpec:
    """Write the copy of the script and return the trial, with the settings of this machine's configuration."""
    settings = load_config.load(environ).prerun
    trial_dir.mkdir(mode=0o700, parents=True)
    script = trial_dir / "script"
    script.write_bytes(request.script.content)
    script.chmod(0o700)
    gpus = count_trial_gpus(request)
    cpus, mem_mib = compute_trial_shape(request, None, gpus)
    return TrialSpec(
        trial_dir=str(trial_dir),
        script=str(script),
        script_name=request.script.path or request.script.name,
        args=request.args,
        chdir=request.chdir,
        steps=settings.steps,
        rehearse_s=0.0 if request.own.rehearse == "off" else float(settings.rehearse_s),
        resumes=request.own.rehearse == "resume" or bool(request.own.resume_args),
        resume_args=tuple(request.own.resume_args.split()),
        time_limit_s=float(settings.time_limit_s),
        environment=list_missing_variables(request, gpus),
        mode="only",
        gpus=request.shape.gpus,
        nodes=request.shape.nodes or 1,
        gpu_type=request.shape.gpu_type or "",
        cpus=cpus,
        mem_mib=mem_mib,
        mem_shrunk=is_memory_shrunk(request, mem_mib),
        inputs=job_inputs.list_named_files(request, environ),
        trial_gpus=gpus,
        trial_tasks=count_trial_tasks(request, gpus),
        overlay=settings.overlay,
        no_training_s=float(settings.no_training_s),
        no_activity_s=float(settings.no_activity_s),
        caches=settings.caches,
    )


def make_slurm_variables(request: JobRequest, spec: TrialSpec) -> dict[str, str]:
    """Return the variables that Slurm sets in the pre-run's job on one node."""
    node = socket.gethostname()
    cpus = str(spec.cpus or os.cpu_count() or 1)
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOBID": str(os.getpid()),
        "SLURM_JOB_NAME": request.prerun_name,
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_SUBMIT_DIR": spec.chdir,
        "SLURM_SUBMIT_HOST": node,
        "SLURMD_NODENAME": node,
        "SLURM_JOB_NODELIST": node,
        "SLURM_NODELIST": node,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": str(spec.trial_tasks),
        "SLURM_NPROCS": str(spec.trial_tasks),
        "SLURM_TASKS_PER_NODE": str(spec.trial_tasks),
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_CPUS_PER_TASK": cpus,
        "SLURM_GPUS_ON_NODE": str(spec.trial_gpus),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
    }


def main() -> int:
    """Print the verdict of one directory."""
    directory, trial_dir = (Path(word).resolve() for word in sys.argv[1:])
    os.chdir(directory)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    return print_alone(find_verdict(directory, trial_dir, environ), True)


if __name__ == "__main__":
    sys.exit(main())
