"""--partition=auto: replace it by a list of the partitions that suit the job, the earliest expected start first.

Only calls with this option load the module and pay for its questions to Slurm: a snapshot, the queue, and
`sbatch --test-only` in each partition that may suit, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurmwrap.errors import RefusedError, SlurmError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.gsub.explain_start import find_starts_of_new_job
from slurmwrap.gsub.partition_user import find_partition_user
from slurmwrap.gsub.planning_inputs import find_run_time
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.placement.partition_choice import (
    AT_ONCE_S,
    PartitionNeeds,
    find_earlier_partition,
    find_suitable_partitions,
    rank_partitions,
)
from slurmwrap.profiling.job_key import derive_key, derive_length, derive_variant
from slurmwrap.protocols import SbatchCall
from slurmwrap.report.text_format import span
from slurmwrap.sbatch.command_line import add_plugin_names, split_command_line
from slurmwrap.sbatch.job_request import CpuUnit, JobRequest, MemUnit, Origin, RequestChange, SbatchSetting
from slurmwrap.sbatch.option_table import AUTO_PARTITION
from slurmwrap.sbatch.rewrite import ADDED

# Partitions in which Slurm is asked about the job, one call of sbatch each.
_MOST_TESTED = 12
# Partitions that are left out and named in the reason of the choice.
_MOST_NAMED = 4
_NAME_ONE = "Name one: --partition=NAME (sinfo -s lists them)."


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankedPartitions:
    """The partitions that suit, the earliest expected start (Unix seconds) first, and why others are left out."""

    names: tuple[str, ...]
    starts: Mapping[str, float]
    left_out: Mapping[str, str]


def choose_partition(
    words: Sequence[str], request: JobRequest, open_context: Callable[[], SubmitContext]
) -> tuple[list[str], JobRequest] | None:
    """Return the call and the request with partitions in place of `auto`; None if the cluster has one of this name.

    RefusedError: no partition takes the job. SlurmError: Slurm does not answer.
    """
    if request.hetjob:
        raise UsageError("--partition=auto: the components of a heterogeneous job need partitions", hint=_NAME_ONE)
    if request.setting("clusters"):
        raise UsageError(
            "--partition=auto knows only the partitions of this cluster, not of --clusters", hint=_NAME_ONE
        )
    context = open_context()
    snapshot = context.slurm.snapshot()
    if any(one.name == AUTO_PARTITION for one in snapshot.partitions):
        return None
    ranked = _rank(words, request, snapshot, context)
    if not ranked.names:
        raise RefusedError(
            f"--partition=auto: no partition takes this job: {_join_reasons(ranked.left_out)}",
            hint=f"Change the request. {_NAME_ONE}",
        )
    value, now = ",".join(ranked.names), context.clock.now()
    change = RequestChange(
        option="partition", old=AUTO_PARTITION, new=value, where="", reason=_describe_choice(ranked, now)
    )
    if not any(request.setting(one) for one in ("quiet", "parsable")) and not request.own.json:
        # The explanation of a job with GPUs shows the reason of each change.
        why = f" ({change.reason})" if request.own.explain and not request.shape.gpus else ""
        context.say(f"--partition=auto: {value}{why}")
    return _add_partition(words, request, value), _set_partition(request, value, change)


def advise_partition(
    request: JobRequest, snapshot: Snapshot, run_time: RunTimeEstimate | None, context: SubmitContext
) -> str:
    """Return a sentence if the job would start materially earlier in a partition that the user did not name; else "".

    For --explain of a job that has to wait, if its user named no partition or several.
    """
    asked = request.value("partition") or snapshot.default_partition
    now = context.clock.now()
    if request.chosen or (request.setting("partition") and "," not in asked):
        return ""
    suitable = find_suitable_partitions(
        snapshot,
        _find_needs(request, run_time),
        find_partition_user(request.value("account") or "", request.value("qos") or ""),
        _list_reserved(context),
    )
    others = [name for name in suitable.names if name not in asked.split(",")]
    if not others or not asked or request.hetjob:
        return ""
    call = _make_call(request.argv, request, context.environ)
    starts, _, _ = _find_starts(call, request, run_time, snapshot, context, (asked, *others[:_MOST_TESTED]))
    current = starts.pop(asked, None)
    name = "" if current is None else find_earlier_partition(current, starts, now)
    if not name or current is None:
        return ""
    return (
        f"partition {name} would start it {_describe_start(starts[name], now)}, {asked} {_describe_start(current, now)}"
        "; --partition=auto submits it to all partitions that suit"
    )


def _rank(words: Sequence[str], request: JobRequest, snapshot: Snapshot, context: SubmitContext) -> _RankedPartitions:
    run_time = _find_run_time(request, snapshot, context) if request.shape.gpus else None
    suitable = find_suitable_partitions(
        snapshot,
        _find_needs(request, run_time),
        find_partition_user(request.value("account") or "", request.value("qos") or ""),
        _list_reserved(context),
    )
    # The default partition is among those that Slurm is asked about.
    asked = sorted(suitable.names, key=lambda name: name != snapshot.default_partition)[:_MOST_TESTED]
    call = _make_call(words, request, context.environ)
    starts, takes, refused = _find_starts(call, request, run_time, snapshot, context, asked)
    if asked and not takes and not refused:
        raise SlurmError("--partition=auto: sbatch --test-only gave no answer", hint=_NAME_ONE)
    return _RankedPartitions(
        names=rank_partitions(takes, starts, context.clock.now()),
        starts=starts,
        left_out={**{name: f"Slurm: {reason}" for name, reason in refused.items()}, **suitable.left_out},
    )


def _find_starts(
    call: SbatchCall,
    request: JobRequest,
    run_time: RunTimeEstimate | None,
    snapshot: Snapshot,
    context: SubmitContext,
    names: Sequence[str],
) -> tuple[dict[str, float], list[str], dict[str, str]]:
    """Return (expected starts, as far as they are known; the partitions that take the job; why others refuse it).

    Slurm's own answer assumes that running jobs use their whole time limits, and does not consider those that wait. The
    forecast of slurmwrap counts only GPUs; where they are free now, Slurm knows whether the job can start.
    """
    tests = context.slurm.test_partitions(call, names)
    takes = [name for name in names if name in tests and not tests[name].refusal]
    found = find_starts_of_new_job(request, run_time, snapshot, context, takes) if request.shape.gpus and takes else {}
    now = context.clock.now()
    starts = {}
    for name in takes:
        forecast, by_slurm = found.get(name), tests[name].start
        if forecast is not None and forecast.at - now >= AT_ONCE_S:
            starts[name] = forecast.at
        elif by_slurm is not None:
            starts[name] = float(by_slurm)
    return starts, takes, {name: tests[name].refusal for name in names if name in tests and tests[name].refusal}


def _list_reserved(context: SubmitContext) -> tuple[str, ...]:
    """Return the partitions that the site keeps for pre-runs."""
    return (context.config.prerun.partition,)


def _find_run_time(request: JobRequest, snapshot: Snapshot, context: SubmitContext) -> RunTimeEstimate | None:
    program = next(iter(context.trials.entry_files(request)), request.script.name)
    key = request.own.resource_profile or derive_key(request, program, request.shape.gpu_type or "")
    # Runs in the partition say something only when one is chosen.
    anywhere = replace(request, settings=tuple(one for one in request.settings if one.option != "partition"))
    return find_run_time(
        *(anywhere, key, derive_variant(request), derive_length(request, context.environ), snapshot, context)
    )


def _find_needs(request: JobRequest, run_time: RunTimeEstimate | None) -> PartitionNeeds:
    shape = request.shape
    by_task = shape.cpus if shape.cpu_unit is CpuUnit.PER_TASK else None
    return PartitionNeeds(
        nodes=shape.nodes,
        time_limit_s=shape.time_limit_s,
        run_s=None if run_time is None else run_time.p90_s,
        cpus_per_node=by_task if by_task is None else by_task * (shape.tasks_per_node or 1),
        mem_mib_per_node=shape.mem_mib if shape.mem_unit is MemUnit.PER_NODE else None,
        reservation=request.setting("reservation") is not None,
        gpus=shape.gpus > 0,
        any_gpu_type=shape.gpus > 0 and not shape.gpu_type and request.setting("constraint") is None,
        preemptible=bool(request.own.preemptible),
    )


def _make_call(words: Sequence[str], request: JobRequest, environ: Mapping[str, str]) -> SbatchCall:
    """Return the user's own call of sbatch. An added --partition stands behind their options, so it applies."""
    command = split_command_line(words, add_plugin_names(request.plugin_options))
    path = command.script
    options = command.option_words
    return SbatchCall(
        options=(*options, "--") if path is not None and path.startswith("-") else options,
        script_path=path,
        args=command.args,
        stdin=request.script.content if request.script.from_stdin else None,
        environ=dict(environ),
    )


def _add_partition(words: Sequence[str], request: JobRequest, value: str) -> list[str]:
    """Return the call with the partitions; sbatch takes the last option, and one of the command line first."""
    command = split_command_line(words, add_plugin_names(request.plugin_options))
    mine = [one for one in command.given if one.option == "partition"]
    at = max((max(one.word, one.value_word) + 1 for one in mine), default=0)
    return [*words[:at], f"--partition={value}", *words[at:]]


def _set_partition(request: JobRequest, value: str, change: RequestChange) -> JobRequest:
    """Return the request with the partitions where the user wrote `auto`; a #GSUB line adds an option."""
    old = request.setting("partition")
    assert old is not None
    if old.origin is Origin.SCRIPT and old.span is None:
        new = SbatchSetting(option="partition", value=value, origin=Origin.COMMAND_LINE, where=ADDED)
        settings = (*(one for one in request.settings if one is not old), new)
    else:
        settings = tuple(replace(one, value=value) if one is old else one for one in request.settings)
    return replace(request, settings=settings, chosen=(change,))


def _describe_start(start: float, now: float) -> str:
    return "now" if start - now < AT_ONCE_S else f"in about {span(start - now)}"


def _describe_choice(ranked: _RankedPartitions, now: float) -> str:
    expected = [f"{name} {_describe_start(ranked.starts[name], now)}" for name in ranked.names if name in ranked.starts]
    parts = [f"expected start: {', '.join(expected)}"] if expected else []
    if len(ranked.names) > 1:
        parts.append("Slurm starts it in the first that can")
    if ranked.left_out:
        parts.append(f"left out: {_join_reasons(ranked.left_out)}")
    return "; ".join(parts)


def _join_reasons(left_out: Mapping[str, str]) -> str:
    """Return why partitions are left out, with those of one reason together."""
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason, []).append(name)
    named = [f"{', '.join(same[:_MOST_NAMED])} ({reason})" for reason, same in names.items()]
    return ", ".join(named[:_MOST_NAMED]) + (" and others" if len(named) > _MOST_NAMED else "")
