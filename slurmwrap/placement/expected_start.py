"""Turn Slurm's queue into the input of start_forecast.py, and its result into the expected start of one job. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, inf

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.cluster import Node
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.placement.locality_wait import ClosenessForecast, forecast_closeness
from slurmwrap.placement.start_forecast import NodeGpus, QueuedJob, RunningJob, StartForecast, forecast_starts
from slurmwrap.sbatch.passthrough import count_array_tasks

# Jobs ahead that are considered at most, as Slurm's bf_max_job_test; beyond that there is no forecast.
MOST_AHEAD = 500
# Reasons with which a job waits for resources only, or soon will.
_WAITS = frozenset(("None", "Priority", "Resources", "BeginTime", "SchedDefer", "Cleaning"))
# States in which a job holds its GPUs, and how long a job that ended still holds them.
_HOLDS = frozenset(("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "STAGE_OUT", "RESIZING"))
_COMPLETING_S = 60.0
# Share of the allocated GPUs whose jobs are not shown (PrivateData), above which there is no forecast.
_MOST_HIDDEN = 0.1

EstimateOf = Callable[[JobRecord], RunTimeEstimate | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStart:
    """When a pending job is expected to start, in Unix seconds."""

    at: float  # median
    by: float  # nine of ten such jobs start by then
    jobs: int  # running jobs and jobs ahead of it that were considered
    predicted: int  # of them: those whose end was predicted; the others run until their time limit


def find_expected_start(
    job: JobRecord | QueuedJob,
    nodes: Sequence[Node],
    jobs: Iterable[JobRecord],
    estimate_of: EstimateOf,
    now: float,
    slurm_start: float | None = None,
) -> ExpectedStart | None:
    """Return when `job` starts, or None if only Slurm's own forecast is known.

    `job`: a pending job of `jobs`, or one that is not submitted yet, which then comes last. `jobs`: all jobs of the
    cluster that run or wait. `estimate_of`: run time of a job without progress of its own. `slurm_start`: Slurm's
    forecast, in Unix seconds; its start is never expected later.
    """
    if isinstance(job, JobRecord):
        return find_expected_starts({job.address: slurm_start}, nodes, jobs, estimate_of, now).get(job.address)
    line = _make_queue_line(nodes, jobs, estimate_of, now)
    if line is None or len(line.queue) > MOST_AHEAD:
        return None
    line.queue.append(job)
    return _make_expected_start(line, len(line.queue) - 1, line.forecast(nodes), now, slurm_start)


def find_expected_starts(
    wanted: Mapping[str, float | None],
    nodes: Sequence[Node],
    jobs: Iterable[JobRecord],
    estimate_of: EstimateOf,
    now: float,
) -> dict[str, ExpectedStart]:
    """Return when pending jobs of `jobs` start, by address, from one forecast; of an array when its next task starts.

    `wanted`: address to Slurm's forecast, as `slurm_start` of find_expected_start(). A job of which only Slurm's
    forecast is known is left out, as is one with more than MOST_AHEAD jobs ahead of it.
    """
    line = _make_queue_line(nodes, jobs, estimate_of, now)
    if line is None:
        return {}
    places = {address: place for address, place in line.places.items() if address in wanted and place <= MOST_AHEAD}
    if not places:
        return {}
    # The forecast of a job does not depend on those behind it.
    del line.queue[max(places.values()) + 1 :]
    forecast, found = line.forecast(nodes), {}
    for address, place in places.items():
        # A job that waits although its GPUs are free waits for something else: CPUs, memory, a limit.
        if forecast[line.queue[place].job].p50_s > 0 and (
            start := _make_expected_start(line, place, forecast, now, wanted[address])
        ):
            found[address] = start
    return found


def find_starts_in_partitions(
    job: JobRecord,
    partitions: Iterable[str],
    nodes: Sequence[Node],
    jobs: Iterable[JobRecord],
    estimate_of: EstimateOf,
    now: float,
) -> dict[str, float]:
    """Return when a pending job would start in each of `partitions` if it came last there, in Unix seconds.

    Partitions in which it would never start are left out, as are all if too much is hidden or more than MOST_AHEAD jobs
    wait. A job without a known run time is assumed to use its time limit, as in Slurm's own forecast.
    """
    line = _make_queue_line(nodes, [one for one in jobs if one.address != job.address], estimate_of, now)
    if line is None or len(line.queue) > MOST_AHEAD:
        return {}
    largest, found = max((node.gpus for node in nodes), default=0), {}
    for name in partitions:
        last = _make_queued(replace(job, partition=name), estimate_of(job), largest, now)
        forecast = replace(line, queue=[*line.queue, last]).forecast(nodes)[last.job]
        if forecast.p50_s < inf:
            found[name] = now + forecast.p50_s
    return found


def find_closeness(
    job: JobRecord,
    fewest: int,
    nodes: Sequence[Node],
    jobs: Iterable[JobRecord],
    estimate_of: EstimateOf,
    now: float,
) -> ClosenessForecast | None:
    """Return when a pending job of `jobs` starts on `fewest` nodes, and on any; None if too little is known."""
    line = _make_queue_line(nodes, jobs, estimate_of, now)
    place = None if line is None else line.places.get(job.address)
    if line is None or place is None or place > MOST_AHEAD:
        return None
    node_gpus = _list_node_gpus(nodes, line.running)
    return forecast_closeness(line.queue[place], fewest, node_gpus, line.running, line.queue[:place])


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueueLine:
    """Input of a forecast. `places`: the place of a pending job, or of an array's next task, in `queue`."""

    running: list[RunningJob]
    queue: list[QueuedJob]
    places: dict[str, int]

    def forecast(self, nodes: Sequence[Node]) -> Mapping[str, StartForecast]:
        return forecast_starts(_list_node_gpus(nodes, self.running), self.running, self.queue)


def _make_queue_line(
    nodes: Sequence[Node], jobs: Iterable[JobRecord], estimate_of: EstimateOf, now: float
) -> _QueueLine | None:
    """Return the running jobs and the queue, at most one job more than can be considered; None if jobs are hidden."""
    jobs = tuple(jobs)
    running = [one for one in jobs if one.state in _HOLDS and one.gpus and one.nodes]
    if _find_hidden_share(nodes, running) > _MOST_HIDDEN:
        return None
    largest = max((node.gpus for node in nodes), default=0)
    waiting = sorted(
        (one for one in jobs if one.pending and one.gpus and one.priority and one.reason in _WAITS),
        key=lambda one: (-one.priority, one.job_id),
    )
    queue: list[QueuedJob] = []
    places: dict[str, int] = {}
    for one in waiting:
        if len(queue) > MOST_AHEAD:
            break
        places[one.address] = len(queue)
        queue += _list_tasks(one, estimate_of(one), largest, now)
    held = [_make_running(one, estimate_of(one), now) for one in running]
    return _QueueLine(running=held, queue=queue, places=places)


def _make_expected_start(
    line: _QueueLine, place: int, forecast: Mapping[str, StartForecast], now: float, slurm_start: float | None
) -> ExpectedStart | None:
    found = forecast[line.queue[place].job]
    considered = len(line.running) + place
    predicted = round(found.predicted * considered)
    if found.p50_s == inf or not predicted:
        return None
    latest = inf if slurm_start is None else slurm_start
    return ExpectedStart(
        at=min(now + found.p50_s, latest),
        by=min(now + found.p90_s, latest),
        jobs=considered,
        predicted=predicted,
    )


def _list_node_gpus(nodes: Iterable[Node], running: Iterable[RunningJob]) -> list[NodeGpus]:
    """Return the nodes that take jobs. The queue may be newer than `nodes`, so it decides what is free."""
    held = Counter[str]()
    for one in running:
        held.update(dict(one.gpus))
    return [
        NodeGpus(node=node.name, partitions=node.partitions, free=max(0, node.gpus - held[node.name]))
        for node in nodes
        if node.usable
    ]


def _find_hidden_share(nodes: Iterable[Node], running: Iterable[JobRecord]) -> float:
    """Return the share of the allocated GPUs that no job of `running` holds."""
    used = sum(node.gpus_used for node in nodes)
    return max(0.0, 1 - sum(one.gpus for one in running) / used) if used else 0.0


def _make_running(job: JobRecord, estimate: RunTimeEstimate | None, now: float) -> RunningJob:
    per_node = ceil(job.gpus / len(job.nodes))
    gpus = tuple((node, per_node) for node in job.nodes)
    if job.state == "COMPLETING":
        return RunningJob(gpus=gpus, elapsed_s=0.0, limit_s=_COMPLETING_S)
    elapsed_s = max(0.0, now - (job.start_time or now))
    return RunningJob(gpus=gpus, elapsed_s=elapsed_s, limit_s=job.time_limit_s, estimate=estimate)


def _list_tasks(job: JobRecord, estimate: RunTimeEstimate | None, largest: int, now: float) -> Iterable[QueuedJob]:
    """Return a job, or each task of a pending array."""
    one = _make_queued(job, estimate, largest, now)
    tasks = min(count_array_tasks(job.array_tasks), MOST_AHEAD + 1)
    return [replace(one, job=f"{one.job}.{number}") for number in range(tasks)] if tasks else [one]


def _make_queued(job: JobRecord, estimate: RunTimeEstimate | None, largest: int, now: float) -> QueuedJob:
    nodes = max(1, job.num_nodes)
    begins = job.eligible_time if job.reason == "BeginTime" else None
    return QueuedJob(
        job=str(job.job_id),
        gpus=job.gpus,
        # Slurm shows the least number of nodes; a job that asked for GPUs in sum may get more.
        nodes=None if job.gpus > nodes * largest else nodes,
        partitions=tuple(job.partition.split(",")) if job.partition else (),
        begins_s=max(0.0, begins - now) if begins else 0.0,
        limit_s=job.time_limit_s,
        estimate=estimate,
    )
