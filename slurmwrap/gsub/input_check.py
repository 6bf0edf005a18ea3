"""Submit the job that reads the input files of a real job completely while that job waits for its GPUs.

The pre-run submits it as its last act, when it knows which files the program opened and the real job is released. No
job ever waits for it: it has a low priority and one CPU, and ends by itself when the real job starts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slurmwrap import package_files
from slurmwrap.errors import SlurmError
from slurmwrap.gsub.submit_context import get_last_line
from slurmwrap.inject.slurmwrap_opened_files import NAME
from slurmwrap.model.verdict import Outcome
from slurmwrap.prerun.inputs.opened_files import read_opened_files
from slurmwrap.protocols import SbatchCall
from slurmwrap.sbatch.rewrite import spell

if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.verdict import Verdict
    from slurmwrap.prerun.trial.trial_spec import TrialSpec
    from slurmwrap.sbatch.job_request import JobRequest

# Names of files in the trial's directory: the check's output, its result, and the trial directories of jobs with the
# same script and arguments, which share the result.
OUTPUT, RESULT, SAME_ARGUMENTS = "inputs.out", "inputs.json", "same_arguments"
_MEM_MIB = 2048
# Slurm's largest value: the check begins only where it delays no other job (sbatch(1), --nice).
_NICE = 2147483645
# With "auto" the real job has the first choice of the resources for so long.
_HEAD_START_S = 15
# Seconds that the pre-run waits for the real job to start, so that no check is submitted for one that starts at once.
_START_S = 3.0
_POLL_S = 0.5
# Slurm removes a check that could not begin within a day: the partition may grant no job without GPUs.
_DEADLINE = "now+1days"
_KEPT_OPTIONS = ("account", "clusters", "qos", "wckey", "exclude")
_KEPT_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TMPDIR", "SLURM_CONF")
_KEPT_PREFIXES = ("LC_", "XDG_", "SLURMWRAP_")


def note_same_arguments(first: Path, other: Path) -> None:
    """Record that the job of the trial directory `other` has the script and arguments that `first` was tried with."""
    with suppress(OSError), (first / SAME_ARGUMENTS).open("a", encoding="utf-8") as stream:
        stream.write(f"{other}\n")


def start_input_check(spec: TrialSpec, request: JobRequest, verdict: Verdict, context: SubmitContext) -> None:
    """Submit the check if the configuration asks for it and the trial opened input files. Errors are only reported."""
    settings = context.config.prerun
    if settings.inputs == "off" or spec.real_job is None or verdict.outcome is Outcome.FAIL:
        return
    if not spec.inputs and not (Path(spec.trial_dir, NAME).exists() and _has_files(spec)):
        return
    try:
        if settings.inputs == "auto" and _is_started(spec.real_job, context):
            return
        result = context.slurm.sbatch(make_input_check_call(spec, request, context))
    except (SlurmError, OSError) as error:
        context.say(f"the input files are not read: {error}")
        return
    if result.job_id is None:
        why = get_last_line(result.stderr)
        context.say(f"the input files are not read, because Slurm refuses a job without GPUs: {why}")
        context.say("  prerun.inputs_partition names a partition for such jobs; prerun.inputs=off does not try")
        return
    context.say(f"job {result.job_id} reads the input files while job {spec.real_job} waits for its GPUs")


def _has_files(spec: TrialSpec) -> bool:
    return bool(read_opened_files(spec.trial_dir, leave_out=(spec.trial_dir,)).files)


def _is_started(real_job: str, context: SubmitContext) -> bool:
    """Return whether the job starts within _START_S. A query that fails counts as no."""
    for _ in range(int(_START_S / _POLL_S)):
        record = None
        with suppress(SlurmError):
            record = context.slurm.job(real_job)
        if record is not None and not record.pending:
            return True
        context.clock.sleep(_POLL_S)
    return False


def make_input_check_call(spec: TrialSpec, request: JobRequest, context: SubmitContext) -> SbatchCall:
    """Return the sbatch call: one CPU, no GPU, the job's account, the partition of the configuration or of the job."""
    settings = context.config.prerun
    partition = settings.inputs_partition or settings.partition or request.value("partition") or ""
    seconds = min(settings.inputs_limit_s, _find_longest_time(partition, context))
    options = [
        f"--job-name={request.input_check_name}",
        f"--chdir={spec.trial_dir}",
        *("--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={_MEM_MIB}M", "--gres=none"),
        f"--time={max(1, seconds // 60)}",
        f"--output={spec.trial_dir}/{OUTPUT}",
        *("--no-requeue", f"--nice={_NICE}", f"--deadline={_DEADLINE}"),
    ]
    options += [f"--begin=now+{_HEAD_START_S}"] if settings.inputs == "auto" else []
    options += [f"--partition={partition}"] if partition else []
    options += [spell(name, value) for name in _KEPT_OPTIONS if (value := request.value(name))]
    environ = {**select_environment(context.environ), "SLURMWRAP_TRIAL_DIR": spec.trial_dir}
    environ.setdefault("SLURMWRAP_PYTHON", sys.executable)
    script = package_files.shipped("templates") / "prerun" / "inputs.sh"
    return SbatchCall(options=("--parsable", *options), script_path=str(script), environ=environ)


def select_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the check needs. The others belong to the pre-run's allocation or to the program."""
    return {k: v for k, v in environ.items() if k in _KEPT_VARIABLES or k.startswith(_KEPT_PREFIXES)}


def describe_input_check(directory: Path) -> list[str]:
    """Return what the check of this trial's input files found, as lines of text; [] if there is no result."""
    try:
        plain = json.loads((directory / RESULT).read_bytes())
        broken = [fault for fault in plain["faults"] if fault["certain"]]
        lines = [
            f"{plain['files']} files, {plain['read']} read completely and sound, {plain['known']} known to be sound, "
            f"{len(broken)} broken" + ("" if plain["complete"] else "; the check ended before all were read")
        ]
        for fault in plain["faults"]:
            kind = "" if fault["certain"] else ", which some programs accept"
            at = "" if fault["offset"] is None else f" (at byte {fault['offset']:,})"
            lines.append(f"{fault['path']} {fault['text']}{at}{kind}; {fault['why']}")
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return lines


def _find_longest_time(partition: str, context: SubmitContext) -> int:
    """Return the shortest time limit of the named partitions in seconds; a job beyond it would pend for ever."""
    with suppress(SlurmError):
        snapshot = context.slurm.snapshot()
        names = (partition or snapshot.default_partition).split(",")
        limits = [int(one.max_time_s) for one in snapshot.partitions if one.name in names and one.max_time_s]
        return min(limits, default=86400 * 365)
    return 86400 * 365
