"""First step of a submission: check the request, plan placement and resources, choose the pre-run, render the script.

Nothing outside the process changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from slurmwrap import timing
from slurmwrap.digest import sha256_hex
from slurmwrap.errors import SlurmError, StaticFailed, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub import refusals
from slurmwrap.gsub.planning_inputs import find_known_profile, find_run_time, keep, read_planning_facts
from slurmwrap.gsub.refusals import find_blocked_inputs, find_impossible_request, find_repeated_failures
from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext, make_folded_request, make_untuned_request
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.limits import Quotas
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.placement.candidates import LATER
from slurmwrap.placement.plan_placement import plan
from slurmwrap.prerun.code_fingerprint import SETTINGS
from slurmwrap.prerun.static.impossible_requests import find_impossible_requests
from slurmwrap.profiling.job_key import (
    compute_fingerprint,
    compute_sweep_group,
    derive_key,
    derive_length,
    derive_variant,
)
from slurmwrap.sbatch.job_request import JobRequest, OptionChange
from slurmwrap.sbatch.rewrite import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.model.run_time import RunTimeEstimate
    from slurmwrap.model.verdict import Verdict
    from slurmwrap.prerun.expected_saving import SavingEstimate
    from slurmwrap.sbatch.pack_option import PackPlan


_FILE_CATEGORIES = ("incorrect_inputs", "permission_error")
# Minimum seconds for the CPU curve with --prerun=profile: two rounds over about eight points (see the profiler).
PROFILE_S = 300


def prepare(request: JobRequest, context: SubmitContext) -> PreparedJob:
    """Check the request, plan it and render its script. Raise RefusedError or StaticFailed if it should not run."""
    entry_files = context.trials.entry_files(request)
    mark = compute_fingerprint(request, entry_files, context.environ)
    inputs = context.trials.named_files(request)
    # The begin of a reservation decides whether the job is delayed, so the snapshot is needed before the checks.
    early = context.slurm.snapshot() if request.setting("reservation") else None
    delay = _find_start_delay(request, early, context)
    findings, forced = _run_checks(request, context, mark, inputs, delay)
    timing.reached("fingerprint and checks")
    snapshot = early or context.slurm.snapshot()
    timing.reached("snapshot")
    if (request.own.prerun or context.config.prerun.mode) != "only" and (
        refused := find_impossible_request(request, snapshot)
    ):
        if not request.own.force:
            raise refused[0]
        forced = (*forced, *map(str, refused))
    key = request.own.resource_profile or derive_key(
        request, next(iter(entry_files), request.script.name), request.shape.gpu_type or ""
    )
    variant, length = derive_variant(request), derive_length(request, context.environ)
    profile = find_known_profile(key, context)
    # Adapt the profile to its age and to this job's variant (for example its batch size).
    if profile is not None:
        from slurmwrap.profiling.merge_profiles import adapt_profile

        kind = request.shape.gpu_type or ""
        profile = adapt_profile(profile, context.clock.now(), variant=variant, gpu_type=kind)
        if profile.loading is not None and context.published.mounts:
            from slurmwrap.profiling.storage_model import apply_mount_speed

            profile = apply_mount_speed(profile, context.published.mounts)
        snapshot = _refresh_quotas(snapshot, context)
    code = {path: content for path, content in entry_files.items() if not path.endswith(SETTINGS)}
    # Several clusters may share one home directory, so the cluster is part of the digest.
    group = compute_sweep_group(request, code, {**context.environ, "(cluster)": context.cluster})
    # Jobs share a pre-run only if they wait for the same dependency or begin: before it, files may be missing.
    if delay and group:
        group = sha256_hex(f"{group} {delay} {request.value('dependency')}".encode("utf-8", "surrogateescape"))
    has_free_gpus = find_free_gpus(request, snapshot)
    # Only for the explanation: the pre-run of this submission, if it gets one, measures again.
    prerun_s = _find_prerun_run_s(mark, request, context) if request.own.explain else None
    run_time = find_run_time(request, key, variant, length, snapshot, context, prerun_s)
    measured_up_to = _find_members_to_measure(request, profile, snapshot, context)
    prerun, reason = choose_prerun(
        request, context, mark, group, has_free_gpus=has_free_gpus, measures=bool(measured_up_to)
    )
    estimate = None
    if not reason:
        prerun, reason, estimate = weigh_prerun(
            prerun, request, context, key, run_time, starts_now=has_free_gpus and not delay
        )
    holdout_group, held_out = "", False
    if context.config.prerun.holdout > 0 and not measured_up_to:
        holdout_group, held_out = draw(prerun, request.own.prerun, group or mark, context)
        prerun, reason = ("off", WHY) if held_out else (prerun, reason)
    pack, planned = _plan_packing(request, profile, snapshot, context, 0 if prerun == "off" else measured_up_to)
    share = None
    if request.own.share:
        from slurmwrap.gsub.share_submission import plan_sharing  # few calls use it

        share = plan_sharing(request, profile, run_time, snapshot, context)
        planned = make_untuned_request(request)
    # A heterogeneous job is not changed: a change in one component may not fit the others.
    chosen = PlacementPlan() if request.hetjob else _make_plan(planned, profile, snapshot, prerun, context, run_time)
    if share is not None:
        more = share.room if share.shards is None else (share.shards,)
        chosen = replace(chosen, lines=(*chosen.lines, *more))
    timing.reached("plan")
    retry = context.config.retry.default if request.own.retry is None else request.own.retry
    own = request.own
    for_what = (
        "--retry" * bool(retry or (own.retry is not False and own.retry_on))
        or "--preemptible" * bool(own.preemptible)
        or "--lease" * bool(own.lease_s)
    )
    added = _make_retry_options(request, for_what) if for_what and not request.hetjob else ()
    added = (*added, *(pack.changes if pack else ()), *(share.changes if share else ()))
    if request.own.pack is not None and request.setting("dependency") is not None:
        from slurmwrap.gsub.pack_dependency import check_plan  # few calls use it

        check_plan(request, pack, context)
    incident_warnings = refusals.find_incident_warnings(
        context.published, request, chosen, inputs, snapshot, context.clock.now()
    )
    return PreparedJob(
        request=request,
        batch=render(request, chosen.lines, added=added),
        plan=replace(chosen, profile_key=key),
        snapshot=snapshot,
        added=added,
        profile=profile,
        profile_key=key,
        profile_variant=variant,
        length=length,
        fingerprint=mark,
        inputs=inputs,
        logs=context.trials.log_files(request),
        warnings=(
            *(_make_override_warning(text) for text in forced),
            *(f for f in findings if f.severity is Severity.WARNING),
            *incident_warnings,
            *find_impossible_requests(request, snapshot, request.script.path or request.script.name),
        ),
        prerun=prerun,
        prerun_reason=reason,
        retry=retry,
        forced=forced,
        group=group,
        profile_s=_compute_profile_seconds(prerun, profile, context.config.prerun.profile_s),
        holdout_group=holdout_group,
        held_out=held_out,
        delay=delay,
        estimate=estimate,
        run_time=run_time,
        # An array that its pre-run folds must wait for it: no task may start before.
        keeps_place=prerun == "auto" and not has_free_gpus and not delay and not measured_up_to,
        pack=pack,
        share=share,
    )


def _find_members_to_measure(
    request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot, context: SubmitContext
) -> int:
    # An array of several parts is not folded while it waits.
    if request.own.pack is None or _has_index_beyond_limit(request, snapshot):
        return 0
    from slurmwrap.gsub.pack_submission import find_members_to_measure  # few calls use it

    return find_members_to_measure(request, profile, snapshot, context)


def _plan_packing(
    request: JobRequest,
    profile: ResourceProfile | None,
    snapshot: Snapshot,
    context: SubmitContext,
    measured_up_to: int,
) -> tuple[PackPlan | None, JobRequest]:
    """Return how the array is folded (--pack), and the request for which nodes are planned: that of a folded task."""
    if request.own.pack is None and not _has_index_beyond_limit(request, snapshot):
        return None, request
    from slurmwrap.gsub.pack_submission import plan_packing, plan_splitting  # few calls use it

    pack = None if request.own.pack is None else plan_packing(request, profile, snapshot, context, measured_up_to)
    if _has_index_beyond_limit(request, snapshot):
        pack = plan_splitting(request, pack, snapshot, context)
    return pack, request if pack is None else make_folded_request(request, pack)


def _has_index_beyond_limit(request: JobRequest, snapshot: Snapshot) -> bool:
    """Return whether Slurm would refuse the array for an index that is not below MaxArraySize."""
    array = request.value("array")
    if not array or not snapshot.max_array_size:
        return False
    from slurmwrap.sbatch.array_indices import parse_indices

    found = parse_indices(array)
    return found is not None and found.last >= snapshot.max_array_size


def _find_start_delay(request: JobRequest, snapshot: Snapshot | None, context: SubmitContext) -> str:
    """Return why the job's own request (begin, dependency, reservation ...) delays its start; "" if it does not."""
    if not any(request.setting(option) for option in (*LATER, "priority", "reservation")):
        return ""
    from slurmwrap.sbatch.eligibility import find_delay

    return find_delay(request, context.clock.now(), snapshot.reservation_begins if snapshot else {})


def _make_plan(
    request: JobRequest,
    profile: ResourceProfile | None,
    snapshot: Snapshot,
    prerun: str,
    context: SubmitContext,
    run_time: RunTimeEstimate | None,
) -> PlacementPlan:
    """Plan the job. With the mode `wait`, the plan is made again after the pre-run, and then the job starts at once."""
    # A cached snapshot does not show the job of the call that it was taken for, so its nodes do not count as free.
    at_once = prerun in ("off", "wait") and not snapshot.kept and not any(request.setting(o) for o in LATER)
    seen = read_planning_facts(context, starts_now=at_once, run_time=run_time)
    return plan(request, profile, snapshot, context.published.health, context.config, seen)


def _refresh_quotas(snapshot: Snapshot, context: SubmitContext) -> Snapshot:
    """Return the snapshot with current quotas, for a job whose request may be increased.

    The user's previous job may have used up the quota since a cached snapshot was taken.
    """
    if context.quotas is None or not snapshot.quotas_kept or snapshot.quotas == Quotas():
        return snapshot
    return replace(snapshot, quotas=context.quotas(), quotas_kept=False)


def _find_prerun_run_s(mark: str, request: JobRequest, context: SubmitContext) -> float | None:
    """Return the run time in seconds by an earlier pre-run of the same program; None if none shows it."""
    try:
        measurement = context.memory.measured(mark)
    except StoreError:
        # The estimate is optional. What else needs the database reports its fault.
        return None
    if measurement is None:
        return None
    from slurmwrap.profiling.run_time import compute_run_s_by_prerun

    return compute_run_s_by_prerun(measurement, request.shape.gpus)


def _compute_profile_seconds(mode: str, profile: ResourceProfile | None, allowed_s: int) -> float:
    """Return the seconds of the pre-run for the CPU curve: if requested, or if none is known and the site allows it."""
    if mode == "profile":
        return float(max(allowed_s, PROFILE_S))
    known = profile is not None and bool(profile.cpu_curve)
    return float(allowed_s) if mode in ("auto", "gate", "wait") and not known else 0.0


def _make_override_warning(text: str) -> Finding:
    return Finding(severity=Severity.WARNING, message=f"submitted in spite of this (--force): {text}")


def _run_checks(
    request: JobRequest, context: SubmitContext, mark: str, inputs: Sequence[str], delay: str
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return (findings of the static checks, refusals that --force overrode).

    The job is refused for errors of the static checks, blocked inputs, and a script that failed twice unchanged. With a
    `delay` it is refused only for what no other job can change before it starts.
    """
    mode = request.own.prerun or context.config.prerun.mode
    refused = (
        []
        if delay
        else [*find_blocked_inputs(inputs, context), *find_repeated_failures(request, inputs, context, mark)]
    )
    # --prerun=only is not refused: it submits no job and shows whether the failure is fixed.
    if refused and not request.own.force and mode != "only":
        raise refused[0]
    forced = tuple(str(refusal) for refusal in refused)
    if mode == "off":
        return (), forced
    began = context.clock.now()
    findings = context.trials.check(request)
    findings = downgrade_missing_files(findings, delay) if delay else findings
    errors = [describe(f) for f in findings if f.severity is Severity.ERROR]
    if errors and not request.own.force:
        verdict = make_static_verdict(findings, errors[0], context.clock.now() - began)
        raise StaticFailed("\n".join(errors), hint="Fix it, or submit it unchanged with --force.", verdict=verdict)
    return findings, (*forced, *errors)


# Messages of findings about something that is missing or unreadable. A job that ends earlier may still create it.
_MISSING = re.compile(
    r"no such file|there is no (?:file|directory)|does not exist|No module named|command not found on this machine"
    r"|cannot be read|you may not write"
)


def downgrade_missing_files(findings: Sequence[Finding], delay: str) -> tuple[Finding, ...]:
    """Turn errors about missing files into warnings, because the files may exist when the job starts."""
    return tuple(
        replace(f, severity=Severity.WARNING, message=f"{f.message}; {delay}, and it may be there when it starts")
        if f.severity is Severity.ERROR and (f.category in _FILE_CATEGORIES or _MISSING.search(f.message))
        else f
        for f in findings
    )


def make_static_verdict(findings: Sequence[Finding], reason: str, seconds: float) -> Verdict:
    """Return a `fail` verdict of the static layer, with the category of the first error that has one."""
    from slurmwrap.model.verdict import Outcome, Verdict

    wrong = [f for f in findings if f.severity is Severity.ERROR]
    return Verdict(
        outcome=Outcome.FAIL,
        layer="static",
        reason=reason,
        seconds=round(seconds, 3),
        category=next((f.category for f in wrong if f.category), ""),
        findings=(*wrong, *(f for f in findings if f not in wrong)),
    )


def describe(finding: Finding) -> str:
    """Format a finding in one line: location, message and fix."""
    where = f"{finding.file}:{finding.line}: " if finding.line else f"{finding.file}: " if finding.file else ""
    return f"{where}{finding.message}" + (f" ({finding.fix})" if finding.fix else "")


def _make_retry_options(request: JobRequest, for_what: str) -> tuple[OptionChange, ...]:
    """Return the options that a later run needs: --requeue, and an output file that is not truncated.

    `for_what`: the option of gsub that asks for later runs. Slurm accepts a requeue only if the job had Requeue=1
    before it ended.
    """
    wishes = []
    if request.setting("requeue") is None:
        wishes.append(
            OptionChange(option="requeue", value="", reason=f"{for_what}: Slurm can only requeue a job that allows it")
        )
    if request.setting("open-mode") is None and has_own_output_file(request):
        reason = f"{for_what}: a second run adds to the output file instead of truncating it"
        wishes.append(OptionChange(option="open-mode", value="append", reason=reason))
    return tuple(wishes)


def has_own_output_file(request: JobRequest) -> bool:
    """Return whether no other job writes to this job's output file: its pattern has the job id or is the default."""
    patterns = [request.value("output"), request.value("error")]
    return all(p is None or any(mark in p for mark in ("%j", "%A", "%J")) for p in patterns)


def choose_prerun(
    request: JobRequest,
    context: SubmitContext,
    mark: str,
    group: str = "",
    *,
    has_free_gpus: bool,
    measures: bool = False,
) -> tuple[str, str]:
    """Return (pre-run mode, reason); the reason "" means that the pre-run's expected value decides (weigh_prerun).

    An explicit mode is kept; `auto` skips a pre-run that would prove nothing new. `group`: see PreparedJob. If a
    pre-run of the group is in flight, the job waits for it, and Slurm is not asked about earlier runs. `measures`: it
    measures how many members share a GPU, so it is not skipped.
    """
    settings = context.config.prerun
    mode = request.own.prerun or settings.mode
    if mode == "profile" and request.setting("wait"):
        return "wait", _PRERUN_FIRST
    if mode not in ("auto", "gate"):
        return mode, "as asked"
    if request.own.prerun is None and request.setting("container-id"):
        return "off", "only Slurm knows the container of --container-id"
    if dependency := request.value("dependency"):
        from slurmwrap.sbatch.eligibility import can_share_dependency

        if not can_share_dependency(dependency):
            return "off", f"its pre-run cannot wait for --dependency={dependency}"
    # If an earlier pre-run did not even reach the steps, another one would not either.
    if measures and (request.own.prerun is not None or not context.memory.undecided(mark)):
        reason = "--pack=auto: it measures how many members share a GPU"
        return ("wait", f"{_PRERUN_FIRST}; {reason}") if request.setting("wait") else (mode, reason)
    asked = is_prerun_requested(request)
    if not _asks_for_more(request) and context.memory.passed(mark):
        return "off", "this script, its code and its arguments passed a pre-run before"
    if not asked and request.shape.gpus == 1 and has_free_gpus:
        return "off", "a 1-GPU job that can start now is its own pre-run"
    if not asked and request.shape.gpus < settings.min_gpus:
        return "off", f"fewer than {settings.min_gpus} GPUs; --prerun=auto tries it nevertheless"
    if why := _find_reason_to_skip(request, context, mark, group):
        return "off", why
    # With --wait, sbatch returns when the job has ended, which is too late to start its pre-run.
    mode = "wait" if request.setting("wait") else mode
    if asked or settings.select == "all" or _has_prerun_in_flight(context, group):
        return mode, _PRERUN_FIRST if mode == "wait" else "first run of this script, code and arguments"
    return mode, ""


_PRERUN_FIRST = "--wait: the pre-run goes first, then the job"


def is_prerun_requested(request: JobRequest) -> bool:
    """Return whether the user asked for a pre-run, by --prerun or by an option about how it runs."""
    own = request.own
    given = any(one is not None for one in (own.prerun, own.prerun_gpus))
    return given or bool(own.prerun_command) or _asks_for_more(request)


def find_free_gpus(request: JobRequest, snapshot: Snapshot) -> bool:
    """Return whether as many GPUs as the job requests are free now, where it may run.

    Only GPUs, nodes, partition and GPU type are compared. True if other jobs wait for these GPUs or another limit keeps
    the job from starting.
    """
    shape, kind = request.shape, request.shape.gpu_type
    partitions = set((request.value("partition") or snapshot.default_partition).split(",")) - {""}
    free = [
        node.gpus_free
        for node in snapshot.nodes
        if node.gpus_free > 0
        and node.usable
        and (not partitions or not partitions.isdisjoint(node.partitions))
        and (not kind or kind in node.gpu_type.split(","))
    ]
    if shape.gpus_per_node:
        return sum(count >= shape.gpus_per_node for count in free) >= max(1, shape.gpus // shape.gpus_per_node)
    return len(free) >= (shape.nodes or 1) and sum(free) >= shape.gpus


def weigh_prerun(
    mode: str,
    request: JobRequest,
    context: SubmitContext,
    key: str,
    run_time: RunTimeEstimate | None = None,
    *,
    starts_now: bool,
) -> tuple[str, str, SavingEstimate]:
    """Return (mode or "off", reason, estimate) by what the pre-run is expected to save and to cost."""
    from slurmwrap.prerun.expected_saving import (
        PrerunCase,
        ScriptHistory,
        describe_estimate,
        estimate_saving,
        summarize_history,
    )

    site = context.published
    case = PrerunCase(
        gpus=request.shape.gpus,
        time_limit_s=request.shape.time_limit_s,
        history=summarize_history(context.memory.outcomes(), key),
        run_time=run_time,
        site=ScriptHistory(new=site.new_scripts, changed=site.changed_scripts),
        starts_now=starts_now,
        wait_weight=context.config.prerun.wait_weight,
    )
    estimate = estimate_saving(case)
    reason = describe_estimate(estimate)
    if not estimate.worthwhile:
        return "off", reason, estimate
    return mode, f"{_PRERUN_FIRST}; {reason}" if mode == "wait" else reason, estimate


def _has_prerun_in_flight(context: SubmitContext, group: str) -> bool:
    return context.flights is not None and bool(group) and context.flights.of(group) is not None


def _asks_for_more(request: JobRequest) -> bool:
    """Return whether the user asked for a pre-run that goes further than usual."""
    return request.own.prerun_steps is not None or request.own.rehearse == "resume" or bool(request.own.resume_args)


def _find_reason_to_skip(request: JobRequest, context: SubmitContext, mark: str, group: str) -> str:
    """Return why a pre-run would show nothing new; "" if it may show something, or if the user asked for one."""
    if request.own.prerun is not None or _asks_for_more(request):
        return ""
    if why := context.memory.undecided(mark):
        return f"an earlier pre-run was inconclusive: {why}; --prerun=auto tries again"
    if program := context.trials.holder(request):
        return f"the script starts only '{program}', which does not train: a pre-run could show nothing"
    if _has_prerun_in_flight(context, group):
        return ""

    return (
        "a run of this script, its code and its arguments completed"
        if has_completed_before(request, context, mark)
        else ""
    )


# Maximum number of recent submissions about which Slurm is asked, one call each.
_MAX_QUERIES = 2
# Tolerated difference between the clocks of the controller and of this host.
_CLOCKS_S = 60.0


def has_completed_before(request: JobRequest, context: SubmitContext, mark: str) -> bool:
    """Return whether a run of the same script, code and arguments completed, which proves more than any pre-run.

    The user's stored records are read first. For the newest runs without a diagnosis Slurm is asked, which forgets a
    job some minutes after its end (MinJobAge); a positive answer is stored.
    """
    script = sha256_hex(request.script.content)
    if context.memory.completed(script, mark):
        return True
    for job_id, submitted_at in context.memory.unjudged(script, mark, context.cluster)[:_MAX_QUERIES]:
        try:
            record = context.slurm.job(str(job_id))
        except SlurmError:
            return False
        if record is not None and _is_completed_run(record, submitted_at, context.uid):
            at = float(record.end_time or context.clock.now())
            keep(partial(context.memory.remember_completed, mark, at), context)
            return True
    return False


def _is_completed_run(record: JobRecord, submitted_at: float, uid: int) -> bool:
    """Return whether `record` is the job submitted at `submitted_at` and it completed without any failed step.

    Array jobs never count: the record describes one task and proves nothing about the others. A failed step is not a
    success even if the batch script's exit code is 0.
    """
    same = record.uid == uid and record.submit_time >= submitted_at - _CLOCKS_S
    well = record.state == "COMPLETED" and not (record.exit_code or record.signal or record.derived_exit_code)
    return same and well and record.array_job_id is None


# The random draw of prerun.holdout: a share of the jobs runs without a pre-run, so that the benefit of pre-runs can be
# measured.
#
# The unit of the draw is not a job but the set of jobs that may share a pre-run: one user's script, code, environment
# and options, within one week. Submitting the same again does not draw again, and a sweep is held out as a whole or not
# at all. A user who asks for a pre-run by --prerun always gets it and takes part in no draw. The mode `wait` is also
# excluded: a job that is never submitted after a failed pre-run could not be counted.
WEEK_S = 7 * 86400
# The first Monday of Unix time, 5 January 1970. Weeks of the draw begin on Mondays.
_MONDAY_S = 4 * 86400
# Number of hexadecimal digits of the digest that are used: 64 bits.
_DIGEST_DIGITS = 16
WHY = "left out at random: prerun.holdout measures what pre-runs save"


def draw(mode: str, asked: str | None, group: str, context: SubmitContext) -> tuple[str, bool]:
    """Return (id of the draw or "" for none, whether the job is held out).

    `mode`: the chosen pre-run mode. `asked`: the mode given by --prerun. `group`: see PreparedJob, else the fingerprint
    of this job.
    """
    share = context.config.prerun.holdout
    if share <= 0 or asked is not None or mode not in ("auto", "gate"):
        return "", False
    week = int((context.clock.now() - _MONDAY_S) // WEEK_S)
    found = sha256_hex(f"{context.cluster} {context.uid} {group} {week}".encode())[:_DIGEST_DIGITS]
    return found, int(found, 16) < share * 16**_DIGEST_DIGITS
