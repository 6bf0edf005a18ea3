"""Join what the hooks observed about a job with Slurm's record of it into Evidence. Pure.

A node knows a job only by its raw id, and ids are reused (requeue, MaxJobId, a controller that lost its state). So an
observation belongs to the run in whose time window it lies. Callers pass only observations whose seal was verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurmwrap.diagnosis.network_facts import format_port_lines
from slurmwrap.diagnosis.node_facts import format_gpu_lines, format_hook_lines
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Evidence, KernelLine, LogTail, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.resource_profile import Measurement

# Largest difference between the clocks of nodes and controller. A requeued job waits longer than that (2 min).
SLACK_S = 5.0
_HOOKS = frozenset({Context.PROLOG, Context.EPILOG, Context.EPILOG_SLURMCTLD})
# The line that slurmstepd writes to stderr (22.05).
_ENDED_BY_SLURM = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT ")
# Number of characters at the end of an earlier tail that are searched for.
_OVERLAP = 4096
# A value of seconds, steps or bytes above this is not a measurement.
_MOST = 1e15
# Slurm's "signal" for an OOM kill (facts of 22.05: ExitCode 0:125 is OUT_OF_MEMORY).
_OOM = 125


def split_status(raw: int) -> tuple[int, int]:
    """Return (exit code, signal) of a raw wait status. As in Slurm, a signal hides the code: 4021 -> (0, 53)."""
    signal = raw & 0x7F
    return (0, signal) if signal else ((raw >> 8) & 0xFF, 0)


def select_observations_of_run(
    observations: Iterable[Observation], *, uid: int, start: float | None, others: Iterable[float] = ()
) -> tuple[Observation, ...]:
    """Return the hooks' observations of the run that started at `start`.

    `others`: starts of the other runs with the same job id. An observation with another user's uid is about an older
    job with the same id.
    """
    if start is None:
        return ()
    before = max((other for other in others if other < start), default=None)
    after = min((other for other in others if other > start), default=None)
    return tuple(
        observation
        for observation in observations
        if observation.context in _HOOKS
        and (uid < 0 or observation.facts.get("uid", uid) == uid)
        and _find_run_boundary(observation, before, start)
        <= _get_time(observation)
        < _find_run_boundary(observation, start, after)
    )


def _get_time(observation: Observation) -> float:
    """Return the run's start by the node's clock if the hook knows it, else the time when the hook ran."""
    return _parse_number(observation.facts, "started_at") or observation.at


def _find_run_boundary(observation: Observation, start: float | None, following: float | None) -> float:
    """Return the time that separates the run that started at `start` from the one that started at `following`.

    An observation that carries a start may be early because of a wrong clock, but by no more than half of the time
    between two runs. One that only knows the end (EpilogSlurmctld, an Epilog without a Prolog) comes before the next
    start.
    """
    if following is None:
        return float("inf")
    if observation.context is not Context.PROLOG and not _parse_number(observation.facts, "started_at"):
        return following if start is not None else following - SLACK_S
    return following - min(SLACK_S, SLACK_S if start is None else (following - start) / 2)


def complete_job_record(job: JobRecord, observations: Sequence[Observation]) -> JobRecord:
    """Return `job` completed from what Slurm passed to the hooks, for a run that Slurm has forgotten or requeued.

    Hooks see 0:0 for success, cancellation, time limit, node failure and preemption alike (Slurm 22.05, all four; since
    24.11 a node failure is 0:1). Then the state stays unknown ("") and only the log can show it. The record of the
    controller's own hook is preferred.
    """
    by_controller_first = sorted(observations, key=lambda o: (o.context is not Context.EPILOG_SLURMCTLD, o.at))
    facts = next((o.facts for o in by_controller_first if isinstance(o.facts.get("wait_status"), int)), None)
    if facts is None:
        return job
    (code, signal), (derived, derived_signal) = (
        split_status(facts["wait_status"]),
        split_status(_parse_int(facts, "derived")),
    )
    state = "OUT_OF_MEMORY" if signal == _OOM else "FAILED" if code or signal else ""
    ended = max(o.at for o in observations)
    return replace(
        job,
        state=state,
        exit_code=code,
        signal=signal,
        derived_exit_code=derived,
        derived_signal=derived_signal,
        end_time=job.end_time if job.end_time is not None else int(ended),
    )


def drop_earlier_exit_code(job: JobRecord, earlier: Iterable[int | None]) -> JobRecord:
    """Return `job` without the derived exit code of its earlier runs: Slurm 22.05 keeps the highest one over a requeue.

    Measured: a job whose first run had an srun that ended with 5, and whose second run succeeded, still shows
    DerivedExitCode=5:0.
    """
    inherited = max((code for code in earlier if code), default=0)
    return replace(job, derived_exit_code=0) if job.derived_exit_code <= inherited else job


def cut_earlier_output(tail: LogTail, earlier: Iterable[LogTail]) -> LogTail:
    """Return `tail` without what earlier runs of the job wrote to the same file (--open-mode=append).

    If the end of an earlier tail is not found in it, the file was started anew or has grown too long. If nothing
    follows that end, a run that failed in the same way wrote the same text again, and nothing is cut.
    """
    cut = 0
    for old in earlier:
        known = old.text[-_OVERLAP:]
        at = tail.text.find(known) if old.name == tail.name and known.strip() else -1
        end = at + len(known)
        if at >= 0 and tail.text[end:].strip():
            cut = max(cut, end)
    return replace(tail, text=tail.text[cut:], first_line=tail.first_line + tail.text.count("\n", 0, cut))


def join(
    attempt: RunKey,
    job: JobRecord,
    observations: Sequence[Observation],
    *,
    logs: Sequence[LogTail] = (),
    earlier: Sequence[Observation] = (),
    requeued: bool = False,
) -> Evidence:
    """Return all facts of one run. `logs`: tails that the caller read; those of files that an Epilog sent are not used.

    `earlier`: observations of earlier runs of the job, whose output must be removed from this run's. `requeued`: Slurm
    shows the next run already, so 0:0 from a hook does not mean success.
    """
    epilogs = [o for o in observations if o.context is Context.EPILOG]
    from_epilogs = tuple(tail for o in epilogs for tail in _parse_tails(o.facts.get("logs")))
    old = [tail for o in earlier if o.context is Context.EPILOG for tail in _parse_tails(o.facts.get("logs"))]
    sent = {tail.name for tail in from_epilogs}
    others = (tail for tail in logs if tail.name not in sent)
    tails = tuple(cut_earlier_output(tail, old) for tail in (*from_epilogs, *others))
    is_ending_unknown = not job.state and not job.exit_code and (requeued or _is_interrupted(tails, observations))
    return Evidence(
        attempt=attempt,
        state=job.state,
        reason="" if job.reason == "None" else job.reason.replace(" ", "_"),
        exit_code=None if is_ending_unknown else job.exit_code,
        signal=job.signal or None,
        derived_exit_code=job.derived_exit_code,
        derived_signal=job.derived_signal or None,
        logs=tails,
        kernel=tuple(line for o in epilogs for line in _parse_kernel_lines(o, job.nodes)),
        nodes=job.nodes,
        gpus=job.gpus,
        run_s=_compute_run_s(job),
        time_limit_s=job.time_limit_s,
        mem_limit_mib=compute_memory_limit_mib(job),
        mem_peak_mib=max((_parse_int(o.facts, "mem_peak_mib") for o in epilogs), default=0) or None,
        oom_kills=_sum_key(epilogs, "oom_kills"),
        nvml=tuple(line for o in epilogs if _is_of(o, job.nodes) for line in format_gpu_lines(o)),
        network=tuple(line for o in epilogs if _is_of(o, job.nodes) for line in format_port_lines(o)),
        hooks=tuple(line for o in observations if _is_of(o, job.nodes) for line in format_hook_lines(o)),
    )


def compute_memory_limit_mib(job: JobRecord) -> int | None:
    """Return the job's memory limit on one node in MiB; None if it has none of its own."""
    if job.mem_mib_per_node:
        return job.mem_mib_per_node
    if job.mem_mib_per_cpu:
        return job.mem_mib_per_cpu * max(1, job.cpus // max(1, len(job.nodes)))
    return None


def build_measurement(job: JobRecord, observations: Sequence[Observation]) -> Measurement | None:
    """Return what the Epilogs measured on the node with the highest use; None if they measured nothing."""
    epilogs = [o.facts for o in observations if o.context is Context.EPILOG]
    peak = max(epilogs, key=lambda facts: _parse_int(facts, "mem_peak_mib"), default={})
    cpu_s = max((_parse_number(facts, "cpu_s") for facts in epilogs), default=0.0)
    gpu_mem = max((_find_gpu_memory(facts) for facts in epilogs), default=0)
    readings = [facts["steps"] for facts in epilogs if isinstance(facts.get("steps"), Mapping)]
    counts = [one for one in readings if _parse_int(one, "count") > 0]
    seconds = _compute_run_s(job) or 0.0
    unused = [not processes for facts in epilogs for processes in _list_accounted_processes(facts)]
    if not _parse_int(peak, "mem_peak_mib") and not cpu_s and not gpu_mem and not counts and not unused:
        return None
    share = max(1, len(job.nodes))
    found = Measurement(
        seconds=seconds,
        cpu_s=cpu_s or None,
        cpus_used=round(cpu_s / seconds, 2) if cpu_s and seconds else None,
        cpus_allocated=job.cpus // share or None,
        mem_peak_mib=_parse_int(peak, "mem_peak_mib") or None,
        mem_source=str(peak.get("mem_source", "")),
        gpus=-(-job.gpus // share),
        gpu_mem_peak_mib=gpu_mem or None,
        gpu_util=_compute_mean(share for facts in epilogs for share in _list_gpu_use(facts, "gpu_percent")),
        gpu_mem_util=_compute_mean(share for facts in epilogs for share in _list_gpu_use(facts, "memory_percent")),
        gpus_unused=sum(unused) if unused else None,
    )
    return add_counted_steps(found, job, max(counts, key=lambda one: _parse_int(one, "count"), default={}))


def add_counted_steps(found: Measurement | None, job: JobRecord, counted: Mapping[str, Any]) -> Measurement | None:
    """Return `found` with the counts of the step counter (node_hooks/step_counts.py); all of it is the user's claim."""
    steps, per_s = _parse_int(counted, "count"), _parse_number(counted, "per_s")
    if steps <= 0:
        return found
    base = found or Measurement(seconds=_compute_run_s(job) or 0.0, gpus=-(-job.gpus // max(1, len(job.nodes))))
    begun, last = job.start_time, _parse_number(counted, "last_at")
    until = last - begun if begun is not None and last >= begun else None
    return replace(base, steps=steps, steps_per_s=per_s if per_s > 0 else None, steps_until_s=until)


def _list_accounted_processes(facts: Mapping[str, Any]) -> Iterable[Sequence[Mapping[str, Any]]]:
    """Yield the processes that NVML's accounting lists, for each GPU; nothing if accounting is off."""
    gpus = facts.get("gpu")
    for gpu in gpus if isinstance(gpus, list) else ():
        found = gpu.get("accounting") if isinstance(gpu, Mapping) else None
        if isinstance(found, list):
            yield [one for one in found if isinstance(one, Mapping)]


def _list_gpu_use(facts: Mapping[str, Any], key: str) -> Iterable[float]:
    """Yield the use of each GPU, 0..1, by the process that worked longest on it, over that process's lifetime."""
    for processes in _list_accounted_processes(facts):
        with_use = [one for one in processes if isinstance(one.get(key), int) and 0 <= one[key] <= 100]
        if with_use:
            yield max(with_use, key=lambda one: _parse_int(one, "ms"))[key] / 100


def _compute_mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return round(sum(known) / len(known), 3) if known else None


def _find_gpu_memory(facts: Mapping[str, Any]) -> int:
    """Return the most memory that one process had on one GPU, by NVML's accounting; 0 if accounting is off."""
    return max(
        (_parse_int(one, "max_mib") for processes in _list_accounted_processes(facts) for one in processes), default=0
    )


def _is_interrupted(tails: Iterable[LogTail], observations: Sequence[Observation]) -> bool:
    """Return True if Slurm ended the run: by its line in stderr, or because a node with a Prolog sent no Epilog."""
    ended = {o.node for o in observations if o.context is Context.EPILOG}
    lost = any(o.context is Context.PROLOG and o.node not in ended for o in observations)
    return lost or any(_ENDED_BY_SLURM.search(tail.text) for tail in tails)


def _compute_run_s(job: JobRecord) -> float | None:
    if job.start_time is None or job.end_time is None:
        return None
    return float(max(0, job.end_time - job.start_time))


def _parse_tails(logs: Any) -> Iterable[LogTail]:
    for log in logs if isinstance(logs, list) else ():
        if isinstance(log, Mapping) and isinstance(log.get("text"), str):
            yield LogTail(name=str(log.get("name", "stdout")), text=log["text"], truncated=bool(log.get("truncated")))


def _is_of(hook: Observation, nodes: Sequence[str]) -> bool:
    """Return True if Slurm lists the hook's node as one of the job's. Root on another node must not influence it."""
    return not nodes or hook.node in nodes


def _parse_kernel_lines(epilog: Observation, nodes: Sequence[str]) -> Iterable[KernelLine]:
    lines = epilog.facts.get("kernel")
    if not _is_of(epilog, nodes):
        return
    for line in lines if isinstance(lines, list) else ():
        if isinstance(line, Mapping) and isinstance(line.get("text"), str):
            at = line.get("at")
            yield KernelLine(text=line["text"], node=epilog.node, at=float(at) if isinstance(at, int | float) else None)


def _sum_key(observations: Sequence[Observation], key: str) -> int | None:
    known = [_parse_int(o.facts, key) for o in observations if isinstance(o.facts.get(key), int)]
    return sum(known) if known else None


def _parse_int(facts: Mapping[str, Any], key: str) -> int:
    value = facts.get(key)
    return value if isinstance(value, int) else 0


def _parse_number(facts: Mapping[str, Any], key: str) -> float:
    value = facts.get(key)
    # A record that holds an infinity could be stored but never read again.
    return float(value) if isinstance(value, int | float) and abs(value) < _MOST else 0.0
