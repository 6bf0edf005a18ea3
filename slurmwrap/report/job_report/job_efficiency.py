"""What a job used of what it asked for, and what to ask for next time, from all sources that know something. Pure.

Sources, the best one first: the samplers on the nodes (cgroup, NVML), NVML's accounting mode, and Slurm's accounting
(sacct, for a running job sstat). Each figure names its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, fsum

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.running_job import HOST, GpuUse
from slurmwrap.model.step_usage import StepUsage
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.gpu_use import GpuUseSummary, summarize_gpu_use
from slurmwrap.profiling.memory_model import MemoryModel
from slurmwrap.report.text_format import count, duration, percent
from slurmwrap.report.user_report import make_usage_row, suggest_options
from slurmwrap.sbatch.job_request import MemUnit, ResourceShape

SAMPLER, NVML, NVML_TOTALS = "cgroup sampler", "NVML, once a minute", "NVML"
# Share of the memory limit from which on the next run may be killed.
_NEARLY_ALL = 0.9
# Share of all CPUs from which on more CPUs may make the job faster, and of a GPU's time below which that is mentioned.
_ALL_CPUS, _LITTLE = 0.95, 0.2
# A job that runs may not have come to use all of its GPUs before this time.
_STARTED_S = 600.0
# As of the options that a user's report suggests: the mean hides bursts.
_CPU_MARGIN = 2.0
_GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEfficiency:
    """What one run used. None: not known. Shares are 0 to 1 of what was allocated."""

    run: JobRun
    seconds: float  # from its start to its end, or to now
    cpu_s: float | None = None  # on all nodes, or on the busiest one (`cpu_nodes`)
    cpu_nodes: int = 1  # number of nodes that `cpu_s` is about
    cpu_share: float | None = None
    cpu_source: str = ""
    cpus_most: float | None = None  # most busy CPUs on one node in one of the samples
    mem_mib: int | None = None  # highest, on the node with the most, or on all nodes (`mem_nodes`)
    mem_asked_mib: float | None = None  # of the same nodes
    mem_nodes: int = 1
    mem_source: str = ""
    gpus: tuple[GpuUseSummary, ...] = ()
    gpu_share: float | None = None  # mean over GPUs and time
    gpu_source: str = ""
    gpu_mem_mib: int | None = None  # highest on one GPU
    gpu_mem_total_mib: int | None = None
    gpus_unused: int | None = None  # GPUs without any process in the whole run
    gpu_energy_j: float | None = None
    node_energy_j: float | None = None  # as Slurm counts it

    @property
    def time_share(self) -> float | None:
        """Return the share of the time limit that it ran; None without a limit."""
        return self.seconds / self.run.time_limit_s if self.run.time_limit_s else None

    @property
    def mem_share(self) -> float | None:
        """Return the share of the memory that it used; None if it has no limit of its own."""
        if self.mem_mib is None or not self.mem_asked_mib:
            return None
        return self.mem_mib / self.mem_asked_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAdvice:
    """What to ask for next time. `option`: an option of sbatch; "" if there is none that says it."""

    option: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEfficiency:
    """A job, or all tasks of an array: the last run of each, and what to ask for next time."""

    address: str
    runs: tuple[RunEfficiency, ...]
    advice: tuple[RequestAdvice, ...] = ()


def measure_run(run: JobRun, uses: Sequence[GpuUse], steps: StepUsage | None, now: float) -> RunEfficiency:
    """Return what one run used. `now`: Unix seconds, for a run that has not ended. `steps`: Slurm's own accounting."""
    end = float(run.end_time) if run.end_time is not None else now
    seconds = max(0.0, end - run.start_time) if run.start_time is not None else 0.0
    found = RunEfficiency(run=run, seconds=seconds)
    measured = run.measurement or _measure_from_samples([use for use in uses if use.gpu == HOST], seconds)
    most = max((max(use.use_pct, default=-1.0) for use in uses if use.gpu == HOST), default=-1.0)
    found = replace(found, cpus_most=most / 100 if most >= 0 else None)
    for add in (_add_cpu, _add_memory):
        found = add(found, measured, steps)
    gpus = summarize_gpu_use(use for use in uses if use.gpu != HOST)
    if run.end_time is None:
        gpus = tuple(replace(one, never_used=one.never_used and one.sampled_s >= _STARTED_S) for one in gpus)
    found = _add_gpus(found, run.measurement, gpus, steps)
    return replace(found, node_energy_j=steps.energy_j if steps is not None else None)


def _measure_from_samples(uses: Sequence[GpuUse], seconds: float) -> Measurement | None:
    """Return what the samples of a running job say about the node with the most memory; None without samples."""
    if not uses:
        return None
    most = max(uses, key=lambda use: max(use.mem_mib, default=0))
    busy = [summary.use_pct for summary in summarize_gpu_use(uses) if summary.use_pct is not None]
    return Measurement(
        cpu_s=max(busy) / 100 * seconds if busy else None, mem_peak_mib=max(max(most.mem_mib, default=0), 0) or None
    )


def _add_cpu(found: RunEfficiency, measured: Measurement | None, steps: StepUsage | None) -> RunEfficiency:
    run, nodes = found.run, max(1, len(found.run.nodes))
    # Slurm's figure is about all nodes, the samplers' about the busiest one.
    if measured is not None and measured.cpu_s and (nodes == 1 or steps is None or not steps.cpu_s):
        cpu_s, of_nodes, source = measured.cpu_s, 1, SAMPLER
    elif steps is not None and steps.cpu_s:
        cpu_s, of_nodes, source = steps.cpu_s, nodes, steps.source
    else:
        return found
    allocated = run.cpus / nodes * of_nodes * found.seconds
    share = cpu_s / allocated if allocated else None
    return replace(found, cpu_s=cpu_s, cpu_nodes=of_nodes, cpu_share=share, cpu_source=source)


def _add_memory(found: RunEfficiency, measured: Measurement | None, steps: StepUsage | None) -> RunEfficiency:
    run, nodes = found.run, max(1, len(found.run.nodes))
    asked = float(run.mem_mib_per_node or 0) or (run.mem_mib_per_cpu or 0) * run.cpus / nodes
    if measured is not None and measured.mem_peak_mib:
        return replace(found, mem_mib=measured.mem_peak_mib, mem_asked_mib=asked or None, mem_source=SAMPLER)
    if steps is None or not steps.mem_mib:
        return replace(found, mem_asked_mib=asked or None)
    return replace(
        found, mem_mib=steps.mem_mib, mem_asked_mib=asked * nodes or None, mem_nodes=nodes, mem_source=steps.source
    )


def _add_gpus(
    found: RunEfficiency,
    measured: Measurement | None,
    gpus: tuple[GpuUseSummary, ...],
    steps: StepUsage | None,
) -> RunEfficiency:
    known = [one.use_pct for one in gpus if one.use_pct is not None]
    peaks = [one.mem_peak_mib for one in gpus if one.mem_peak_mib is not None]
    energy = [one.energy_j for one in gpus if one.energy_j is not None]
    if known or peaks:
        return replace(
            found,
            gpus=gpus,
            gpu_share=fsum(known) / len(known) / 100 if known else None,
            gpu_source=NVML,
            gpu_mem_mib=max(peaks, default=None),
            gpu_mem_total_mib=max((one.mem_total_mib or 0 for one in gpus), default=0) or None,
            gpus_unused=sum(one.never_used for one in gpus),
            gpu_energy_j=fsum(energy) if energy else None,
        )
    if measured is None or (measured.gpu_util is None and measured.gpu_mem_peak_mib is None):
        return _add_gpus_of_slurm(found, steps)
    return replace(
        found,
        gpu_share=measured.gpu_util,
        gpu_source=NVML_TOTALS,
        gpu_mem_mib=measured.gpu_mem_peak_mib,
        gpus_unused=measured.gpus_unused,
    )


def _add_gpus_of_slurm(found: RunEfficiency, steps: StepUsage | None) -> RunEfficiency:
    gpus = found.run.gpus
    if steps is None or not gpus or steps.gpu_pct is None:
        return found
    return replace(
        found,
        gpu_share=min(1.0, steps.gpu_pct / gpus / 100),
        gpu_source=steps.source,
        # Of several GPUs the fullest one is not known.
        gpu_mem_mib=steps.gpu_mem_mib if gpus == 1 else None,
    )


def advise_request(
    runs: Sequence[RunEfficiency], submissions: Mapping[tuple[str, int], Submission]
) -> tuple[RequestAdvice, ...]:
    """Return what to ask for next time, from runs of one job or array that completed; of others only unused GPUs.

    `submissions`: gsub's records by (cluster, job id).
    """
    done = [one for one in runs if one.run.state == "COMPLETED" and one.seconds > 0]
    advice = [*_advise_to_ask_for_less(done, submissions)] if done else []
    return (*advice, *_advise_memory(done), *_advise_cpus(done, advice), *_advise_gpus(runs))


def _advise_to_ask_for_less(
    done: Sequence[RunEfficiency], submissions: Mapping[tuple[str, int], Submission]
) -> list[RequestAdvice]:
    known = dict(submissions)
    row = make_usage_row([_with_best_measurement(one) for one in done], known)
    shape = _find_shape(done[-1].run, known)
    most = max(done, key=lambda one: one.mem_mib or 0)
    found = []
    for option in suggest_options(row, shape):
        name = option.partition("=")[0]
        if name == "--time":
            reason = f"it ran {duration(row.time_used_s)} of {duration(row.time_asked_s or 0)}"
        elif "mem" in name:
            reason = f"its peak was {format_mib(most.mem_mib or 0)} of {format_mib(most.mem_asked_mib or 0)}"
        else:
            reason = _describe_busy_cpus(done)
        found.append(RequestAdvice(option=option, reason=reason))
    return found


def _with_best_measurement(one: RunEfficiency) -> JobRun:
    """Return the run with what is known of it per node, so that runs without a sampler count too."""
    measured = one.run.measurement or Measurement(seconds=one.seconds)
    busy = _find_busy_cpus(one)
    memory = ceil(one.mem_mib / one.mem_nodes) if one.mem_mib is not None else None
    return replace(one.run, measurement=replace(measured, cpus_used=busy, mem_peak_mib=memory))


def _find_busy_cpus(one: RunEfficiency) -> float | None:
    """Return the mean number of busy CPUs on a node, but so that its double is enough for a burst and for each GPU."""
    if one.cpu_s is None or not one.seconds:
        return None
    gpus = one.run.gpus / max(1, len(one.run.nodes))
    return max(one.cpu_s / one.cpu_nodes / one.seconds, (one.cpus_most or 0.0) / _CPU_MARGIN, gpus / _CPU_MARGIN)


def _find_shape(run: JobRun, known: Mapping[tuple[str, int], Submission]) -> ResourceShape:
    """Return the request as gsub recorded it, else the memory that Slurm shows, in its unit."""
    head = run.address.partition("_")[0]
    ids = (run.attempt.job_id, int(head) if head.isdecimal() else -1)
    submission = next((known[run.attempt.cluster, n] for n in ids if (run.attempt.cluster, n) in known), None)
    if submission is not None and submission.shape is not None:
        return submission.shape
    if run.mem_mib_per_cpu:
        return ResourceShape(mem_mib=run.mem_mib_per_cpu, mem_unit=MemUnit.PER_CPU)
    unit = MemUnit.PER_NODE if run.mem_mib_per_node else MemUnit.NONE
    return ResourceShape(mem_mib=run.mem_mib_per_node, mem_unit=unit)


def _advise_memory(done: Sequence[RunEfficiency]) -> list[RequestAdvice]:
    close = [one for one in done if (one.mem_share or 0) >= _NEARLY_ALL and one.mem_source == SAMPLER]
    if not close:
        return []
    most = max(close, key=lambda one: one.mem_mib or 0)
    needed = MemoryModel(peak_mib=most.mem_mib or 0).floor_mib
    option = f"--mem={ceil(needed / _GIB)}G" if most.run.mem_mib_per_node else ""
    peak = f"its peak was {format_mib(most.mem_mib or 0)} of {format_mib(most.mem_asked_mib or 0)}"
    return [RequestAdvice(option=option, reason=f"{peak}: a little more and it is killed")]


def _advise_cpus(done: Sequence[RunEfficiency], advice: Sequence[RequestAdvice]) -> list[RequestAdvice]:
    shares = [one.cpu_share for one in done if one.cpu_share is not None]
    if not shares or any("cpu" in one.option and "mem" not in one.option for one in advice):
        return []
    cpus = done[-1].run.cpus / max(1, len(done[-1].run.nodes))
    if max(shares) >= _ALL_CPUS:
        return [RequestAdvice(option="", reason=f"all of its {cpus:g} CPUs were busy: it may be faster with more")]
    enough = max(1, ceil(_CPU_MARGIN * max(_find_busy_cpus(one) or 0.0 for one in done)))
    if enough * 2 > cpus:
        return []
    return [RequestAdvice(option="", reason=f"{_describe_busy_cpus(done)}: {enough} would do")]


def _describe_busy_cpus(done: Sequence[RunEfficiency]) -> str:
    """Return "7.0 of 32 CPUs were busy, 14.5 at most", about the run that used the most."""
    one = max(done, key=lambda one: one.cpu_share or 0.0)
    cpus = one.run.cpus / max(1, len(one.run.nodes))
    most = f", {one.cpus_most:.1f} at most" if one.cpus_most is not None else ""
    each = " on a node" if len(one.run.nodes) > 1 else ""
    return f"{(one.cpu_share or 0.0) * cpus:.1f} of {count(round(cpus), 'CPU')} were busy{each}{most}"


def _advise_gpus(runs: Sequence[RunEfficiency]) -> list[RequestAdvice]:
    with_gpus = [one for one in runs if one.run.gpus and one.gpus_unused is not None]
    if not with_gpus:
        return []
    unused = min(one.gpus_unused or 0 for one in with_gpus)
    gpus = with_gpus[-1].run.gpus
    if unused:
        what = "its GPU was" if gpus == 1 else f"{unused} of its {gpus} GPUs {'was' if unused == 1 else 'were'}"
        return [RequestAdvice(option="", reason=f"{what} never used: ask for fewer, or see that all ranks start")]
    shares = [one.gpu_share for one in with_gpus if one.gpu_share is not None]
    if shares and max(shares) < _LITTLE:
        what = f"its GPUs were busy for {percent(max(shares))} of the time"
        return [RequestAdvice(option="", reason=f"{what}: look at how it loads its data (slurmwrap profile)")]
    return []


def format_mib(mib: float) -> str:
    """Format memory: "512 MiB", "5.1 GiB"."""
    return f"{mib / _GIB:,.1f} GiB" if mib >= _GIB else f"{mib:,.0f} MiB"


def format_energy(joules: float) -> str:
    """Format energy: "950 J", "12.4 kJ", "0.31 kWh", "5.20 MWh"."""
    if joules < 1000:
        return f"{joules:.0f} J"
    kwh = joules / 3.6e6
    if kwh < 0.1:
        return f"{joules / 1000:.1f} kJ"
    return f"{kwh:.2f} kWh" if kwh < 1000 else f"{kwh / 1000:.2f} MWh"
