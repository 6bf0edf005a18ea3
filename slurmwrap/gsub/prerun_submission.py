"""Create the pre-run as a Slurm job: write its files, make its sbatch call, and run it first (--prerun=wait, only).

Light imports only, because this is on gsub's fast path.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slurmwrap import package_files
from slurmwrap.errors import SlurmError, StoreError, UsageError
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.gsub.prepare import make_static_verdict
from slurmwrap.gsub.sbatch_call import make_sbatch_call
from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext, TrialJob
from slurmwrap.gsub.verdict_output import make_unproven_verdict
from slurmwrap.gsub.waiting_job import list_expected_start_times, make_job_identity
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.verdict import Verdict
from slurmwrap.prerun.trial.trial_spec import (
    TrialSpec,
    compute_trial_shape,
    count_trial_gpus,
    count_trial_tasks,
    is_memory_shrunk,
    list_container_options,
    list_missing_variables,
    make_export_file,
    make_trial_environ,
    make_trial_options,
    spec_to_json,
)
from slurmwrap.protocols import SbatchCall, SbatchResult
from slurmwrap.sbatch.array_indices import parse_indices
from slurmwrap.sbatch.eligibility import (
    can_share_dependency,
    is_reserved_later,
    list_corresponding_jobs,
    make_prerun_dependency,
)
from slurmwrap.sbatch.rewrite import render
from slurmwrap.store import prerun_registry
from slurmwrap.store.serialize import to_json_dict

if TYPE_CHECKING:
    from slurmwrap.config.load_config import Prerun
    from slurmwrap.console import Console
    from slurmwrap.model.cluster import Node
    from slurmwrap.sbatch.job_request import JobRequest
    from slurmwrap.sbatch.pack_option import PackPlan

# Slurm's error messages for a request that can never start on this cluster, whatever node, partition or account.
_NEVER_STARTS = re.compile(
    r"Requested node configuration is not available|Invalid (partition|account|qos|feature|node|generic resource"
    r"|job array|license|reservation|constraint)|can not be satisfied|specification|more processors|Node count",
    re.IGNORECASE,
)


_VERDICT_MARGIN_S = 60  # Slurm's limit exceeds the supervisor's by this, so that there is time to write a verdict
_DEFAULT_LIMIT_S = 3600.0  # time for --prerun-steps if the job itself has no time limit
_STEPS_S = 120.0  # time reserved for the steps if the partition's limit is short


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTimes:
    """Time limits of a trial in seconds: for its steps, for the CPU curve after them, and of its Slurm job.

    `pack_s`: for members side by side, after both.
    """

    trial_s: float
    profile_s: float
    slurm_s: float
    pack_s: float = 0.0


def compute_trial_times(prepared: PreparedJob, settings: Prerun) -> TrialTimes:
    """Return the configured times, reduced to the partition's time limit. Beyond it a pre-run would pend forever."""
    named = choose_prerun_partition(prepared, settings) or ",".join(find_own_partitions(prepared))
    limits = [p.max_time_s for p in prepared.snapshot.partitions if p.name in named.split(",") and p.max_time_s]
    most = max(_VERDICT_MARGIN_S, min(limits, default=86400 * 365) - _VERDICT_MARGIN_S)
    left = max(0.0, most - min(_STEPS_S, settings.time_limit_s))
    pack_s = min(prepared.pack.measure_limit_s if prepared.pack else 0.0, left)
    profile_s = min(prepared.profile_s, left - pack_s)
    trial_s = min(_compute_wanted_seconds(prepared, settings), most - profile_s - pack_s)
    slurm_s = trial_s + profile_s + pack_s + _VERDICT_MARGIN_S
    return TrialTimes(trial_s=trial_s, profile_s=profile_s, slurm_s=slurm_s, pack_s=pack_s)


def find_own_partitions(prepared: PreparedJob) -> tuple[str, ...]:
    """Return the partitions in which the job may run."""
    named = prepared.request.value("partition") or prepared.snapshot.default_partition
    return tuple(name for name in named.split(",") if name)


def choose_prerun_partition(prepared: PreparedJob, settings: Prerun) -> str:
    """Return the partition of the pre-run; "" for the job's own.

    A partition for pre-runs usually has a higher PriorityTier. If the job is not held and its nodes are in that
    partition too, the pre-run would take one of the GPUs that become free for the job, and Slurm would fill the others
    with short jobs until the pre-run's time limit. In the job's own partition the pre-run is behind the job.
    """
    if not settings.partition or not prepared.keeps_place:
        return settings.partition
    own = set(find_own_partitions(prepared))
    shared = any(
        settings.partition in n.partitions and not own.isdisjoint(n.partitions) for n in prepared.snapshot.nodes
    )
    return "" if shared else settings.partition


def _compute_wanted_seconds(prepared: PreparedJob, settings: Prerun) -> float:
    """Return the seconds for the steps.

    With more --prerun-steps than usual the limit is the job's own time limit, unless a job waits for the pre-run for a
    limited time only.
    """
    asked = prepared.request.own.prerun_steps or 0
    if asked <= settings.steps or prepared.prerun not in ("only", "wait", "gate"):
        return float(settings.time_limit_s)
    return float(max(settings.time_limit_s, prepared.request.shape.time_limit_s or _DEFAULT_LIMIT_S))


def describe_many_steps(prepared: PreparedJob, settings: Prerun) -> str:
    """Return a sentence about the time that the pre-run may take with --prerun-steps; "" if it takes no longer."""
    asked = prepared.request.own.prerun_steps or 0
    if asked <= settings.steps or prepared.prerun == "off":
        return ""
    minutes = math.ceil(compute_trial_times(prepared, settings).trial_s / 60)
    if prepared.prerun in ("only", "wait", "gate"):
        return f"the pre-run goes on until step {asked}, for {minutes} min at most"
    waits = math.ceil((settings.grace_s + prepared.measuring_s) / 60)
    return (
        f"the pre-run goes on until step {asked}; the job waits {waits} min for it at most, and starts then anyway "
        "(--prerun=gate waits as long as the steps take)"
    )


def _split_words(text: str) -> tuple[str, ...]:
    """Return the words of --resume-args, with quotes as in a shell. Raise UsageError if a quote is not closed."""
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--resume-args={text}: {error}", hint="quote it as for a shell") from error


def find_largest_node(prepared: PreparedJob) -> Node | None:
    """Return the usable node with the most GPUs; None if none is known."""
    return max((n for n in prepared.snapshot.nodes if n.usable), key=lambda n: n.gpus, default=None)


def make_trial(prepared: PreparedJob, job_id: int | None, release_at: str, *, context: SubmitContext) -> TrialJob:
    """Write the trial's files and return the call that submits it. Raise OSError if they cannot be written."""
    request, settings = prepared.request, context.config.prerun
    directory = Path(context.memory.trial_dir())
    times = compute_trial_times(prepared, settings)
    node = find_largest_node(prepared)
    gpus = count_trial_gpus(request, node)
    tasks = count_trial_tasks(request, gpus)
    cpus, mem_mib = compute_trial_shape(request, node, gpus)
    pack = prepared.pack if times.pack_s else None
    if pack is not None:
        cpus, mem_mib = _add_members(request, pack, cpus, mem_mib)
    spec = TrialSpec(
        trial_dir=str(directory),
        script=str(directory / "script"),
        script_name=request.script.path or request.script.name,
        args=request.args,
        chdir=request.chdir,
        steps=request.own.prerun_steps or settings.steps,
        time_limit_s=times.trial_s,
        environment=list_missing_variables(request, gpus, prepared.snapshot.default_partition),
        real_job=None if job_id is None else str(job_id),
        cluster=context.cluster,
        mode=prepared.prerun,
        fingerprint=prepared.fingerprint,
        profile_key=prepared.profile_key,
        gpus=request.shape.gpus,
        nodes=prepared.plan.node_count or request.shape.nodes or 1,
        gpu_type=request.shape.gpu_type or "",
        cpus=cpus,
        mem_mib=mem_mib,
        mem_shrunk=is_memory_shrunk(request, mem_mib),
        largest_mem_mib=max((one.mem_mib for one in prepared.snapshot.nodes), default=0),
        inputs=prepared.inputs,
        trial_gpus=gpus,
        trial_tasks=tasks,
        command=request.own.prerun_command,
        container=list_container_options(request),
        profile_s=times.profile_s,
        rehearse_s=0.0 if request.own.rehearse == "off" else float(settings.rehearse_s),
        resumes=request.own.rehearse == "resume" or bool(request.own.resume_args),
        resume_args=_split_words(request.own.resume_args),
        overlay=settings.overlay,
        delay=prepared.delay,
        no_training_s=float(settings.no_training_s),
        no_activity_s=float(settings.no_activity_s),
        caches=settings.caches,
        pack_most=pack.measured_up_to if pack else 0,
        pack_indices=pack.indices[: pack.measured_up_to] if pack else (),
        pack_s=context.config.pack.measure_s,
        pack_limit_s=times.pack_s,
        pack_dir=prepared.pack_dir,
        dcgmi=context.config.site.dcgmi,
    )
    _write(directory / "script", request.script.content)
    (directory / "script").chmod(0o700)
    _write_json(directory / "spec.json", spec_to_json(spec))
    grace_s = settings.grace_s + math.ceil(prepared.measuring_s)
    given = list_expected_start_times(request.value("begin"), grace_s, context.clock.now())
    meant = asdict(make_job_identity(request, context.clock.now()))
    plain = {
        "request": to_json_dict(prepared.planned_request),
        "plan": to_json_dict(prepared.plan),
        "release_at": release_at,
        "given": given,
        "job": meant,
        "grace_s": grace_s,
    }
    dependency = "" if job_id is None else _copy_dependency(request, context)
    _write_json(directory / "waiting.json", plain)
    options = make_trial_options(
        request,
        partition=choose_prerun_partition(prepared, settings),
        time_limit_s=times.slurm_s,
        cpus=cpus,
        mem_mib=mem_mib,
        output=str(directory / "job.out"),
        gpus=gpus,
        tasks=tasks,
        dependency=dependency,
        leave_out=("reservation",)
        if is_reserved_later(request, context.clock.now(), prepared.snapshot.reservation_begins)
        else (),
    )
    environ = {
        **make_trial_environ(context.environ),
        "SLURMWRAP_PYTHON": sys.executable,
        "SLURMWRAP_TRIAL_DIR": str(directory),
        "SLURMWRAP_REAL_JOB": spec.real_job or "",
        "SLURMWRAP_RELEASE_AT": release_at,
    }
    if exported := request.value("export-file"):
        _write(directory / "environment", make_export_file(Path(exported).read_bytes(), environ))
        options = (*options, f"--export-file={directory / 'environment'}")
    wrapper = package_files.shipped("templates") / "prerun" / "wrapper.sh"
    call = SbatchCall(options=("--parsable", *options), script_path=str(wrapper), environ=environ)
    return TrialJob(call=call, directory=str(directory))


def _add_members(
    request: JobRequest, pack: PackPlan, cpus: int | None, mem_mib: int | None
) -> tuple[int | None, int | None]:
    """Return CPUs and memory in MiB of a task with as many members as the pre-run tries together."""
    from slurmwrap.placement.pack_size import count_cpus
    from slurmwrap.sbatch.pack_option import compute_memory_mib

    need = compute_memory_mib(request.shape) * pack.measured_up_to
    return max(cpus or 1, count_cpus(request) * pack.measured_up_to), max(mem_mib or 0, need) or None


def _copy_dependency(request: JobRequest, context: SubmitContext) -> str:
    """Return the pre-run's --dependency, which is that of its job, so that it finds the same files; "" for none."""
    value = request.value("dependency") or ""
    if not value or not can_share_dependency(value):
        return ""
    array = parse_indices(request.value("array") or "")
    jobs = list_corresponding_jobs(value) if array else ()
    arrays = [job for job in jobs if (record := context.slurm.job(job)) and record.array_job_id is not None]
    return make_prerun_dependency(value, array.first if array else None, arrays)


def run_prerun_first(
    prepared: PreparedJob, context: SubmitContext, console: Console, live: Console | None = None
) -> Verdict:
    """Validate the request, submit its pre-run alone and follow it on `live`; for --prerun=wait and --prerun=only.

    If Slurm refuses, return that as a verdict with `only`, else raise SlurmError with sbatch's message and exit code.
    On KeyboardInterrupt the user stopped watching: the pre-run goes on, nothing else is submitted, a message says so,
    and the exception is raised again.
    """
    import gc

    from slurmwrap.gsub.follow_prerun import follow

    # gsub_script.py switches the garbage collector off for a submission, but following a pre-run may take hours.
    gc.enable()
    alone = prepared.prerun == "only"
    # Test the job as the user asked for it: if Slurm refuses the plan, the job is submitted without it.
    as_asked = render(prepared.request, (), added=prepared.added)
    tested = context.slurm.sbatch(make_sbatch_call(prepared.request, as_asked, context, ("--test-only",)))
    if tested.exit_code != 0:
        if not alone:
            raise SlurmError(_format_sbatch_errors(tested), exit_code=tested.exit_code)
        reason = f"Slurm refuses the job: {_format_sbatch_errors(tested)}"
        refused = Finding(severity=Severity.ERROR, message=reason, fix="ask for what the cluster has: sinfo")
        never = _NEVER_STARTS.search(reason) is not None
        return (
            make_static_verdict((refused, *prepared.warnings), reason, 0.0) if never else make_unproven_verdict(reason)
        )
    try:
        job = make_trial(prepared, None, "now", context=context)
    except OSError as error:
        raise StoreError(
            f"no pre-run: its files cannot be written: {error}", hint="make room there, or go without: --prerun=off"
        ) from error
    result = context.slurm.sbatch(job.call)
    if result.job_id is None:
        # Otherwise it would be listed as a lost pre-run.
        shutil.rmtree(job.directory, ignore_errors=True)
        if alone:
            return make_unproven_verdict(f"Slurm refuses the pre-run: {_format_sbatch_errors(result)}")
        raise SlurmError(
            f"the pre-run was refused: {_format_sbatch_errors(result)}", hint="submit without it: --prerun=off"
        )
    try:
        prerun_registry.mark_submitted(job.directory, result.job_id)
        live = live or console
        live.say(f"pre-run on {format_gpu_count(prepared)} is job {result.job_id}")
        if live.tty:
            live.say("Ctrl-C stops watching, not the pre-run")
        return follow(Path(job.directory), result.job_id, context, live)
    except KeyboardInterrupt:
        console.say(f"the pre-run, job {result.job_id}, goes on, and nothing else was submitted")
        console.say(f"Follow it: slurmwrap prerun show {result.job_id} --follow")
        console.say(f"Cancel it: scancel {result.job_id}")
        raise


def _format_sbatch_errors(result: SbatchResult) -> str:
    return "; ".join(line.removeprefix("sbatch: error: ") for line in result.stderr.strip().splitlines()) or "no answer"


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def format_gpu_count(prepared: PreparedJob) -> str:
    """Return "one GPU", or the number of --prerun-gpus with "GPUs"."""
    asked = prepared.request.own.prerun_gpus or 1
    return "one GPU" if asked == 1 else f"{asked} GPUs"


def _write_json(path: Path, plain: object) -> None:
    _write(path, json.dumps(plain).encode())
