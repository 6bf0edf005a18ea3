"""The rules `order` and `limit` in the simulated queue: production's functions on a causal history of run times.

As in production, a job is classified when it is submitted, and again when the history of its jobs has changed. The
history has what ended before that moment of the simulated time, and nothing else.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log

from slurmwrap.config.load_config import Limit, Order
from slurmwrap.model.run_time import RunTimeEstimate, RunTimeSample
from slurmwrap.policy.move_choice import classify_attained
from slurmwrap.policy.queue_order import (
    INDEXES,
    OrderSettings,
    PendingOrder,
    choose_thresholds,
    classify_job,
    compute_most_wait_s,
    has_waited_enough,
)
from slurmwrap.policy.time_limit import compute_lower_limit
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery
from slurmwrap.sim.engines.pending_queue import PendingSimJob
from slurmwrap.sim.sim_job import SimJob

# Orders without prediction: by the true run time x GPUs, and by GPUs.
EXACT, FEWEST_GPUS = "exact", "fewest-gpus"
ORDERS = (*INDEXES, EXACT, FEWEST_GPUS)
# Time limits: those of the users, and those that the rule `limit` makes of them.
USER_LIMITS, PREDICTED_LIMITS = LIMITS = ("user", "predicted")

# Least seconds between two classifications of pending jobs. Production classifies in each pass; more often than this
# changes little here.
_CLASSIFY_S = 600.0
# As in reconcile/order_pending.py: how often the limits of the classes are chosen, and from how many runs at least.
_THRESHOLDS_S, _FEWEST_RUNS = 3600.0, 20
_MOST_SERVICES = 5000
# A user asks for between so many times the run time, if the trace does not say.
_HABIT = (1.2, 10.0)
_CUT_OFF = frozenset({"TIMEOUT", "CANCELLED"})
_COMPLETE = frozenset({"", "COMPLETED", "Pass"})


def draw_user_limit_s(job: SimJob) -> float:
    """Return the time limit that the job's user asks for: its own, else log-uniform between 1.2 and 10 run times."""
    if job.limit_s is not None:
        return job.limit_s
    low, high = _HABIT
    return job.work_s * low * exp(random.Random(f"time limit {job.number}").random() * log(high / low))


@dataclass(slots=True, kw_only=True)
class QueueRules:
    """What is done about pending jobs. `index`: one of policy.queue_order.INDEXES; "": no order.

    `limits`: one of LIMITS; "": the simulator's. `keyed`: SimJob.model identifies jobs that do the same.
    """

    index: str = ""
    limits: str = ""
    keyed: bool = False
    order: Order = field(default_factory=Order)
    limit: Limit = field(default_factory=Limit)
    moves: int = 0  # changes of class of pending jobs
    _history: RunTimeHistory = field(default_factory=RunTimeHistory)
    _services: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SERVICES))  # GPU-seconds of ended runs
    _thresholds: tuple[float, ...] = ()
    _chosen: float = -inf  # when the thresholds were chosen
    # Pending jobs by what is known of them, the class of each, and the jobs that have waited enough.
    _pending: dict[RunTimeQuery, dict[int, PendingSimJob]] = field(default_factory=dict)
    _class: dict[int, int] = field(default_factory=dict)
    _first: set[int] = field(default_factory=set)
    _due: list[tuple[float, int, RunTimeQuery]] = field(default_factory=list)
    _last: float = -inf
    _changed: bool = False

    def learn(self, jobs: Iterable[SimJob]) -> None:
        """Add what is known at the beginning: jobs that ended before it, in the order of their ends."""
        known = tuple(jobs)
        # They were submitted before the first job, in their own order.
        last = max((job.submit_s for job in known), default=0.0)
        for job in known:
            self._add(job, job.work_s, job.submit_s - last - 1.0)

    def submit(self, waiting: PendingSimJob, now: float) -> float | None:
        """Give a job its time limit, and return its key in the queue; None: without an order."""
        query = self._make_query(waiting.job)
        if self.limits:
            self._set_limit(waiting, query)
        if not self.index:
            return None
        self._choose_thresholds(now)
        self._pending.setdefault(query, {})[waiting.place] = waiting
        job = self._make_pending_order(waiting, query, now)
        heapq.heappush(self._due, (now + compute_most_wait_s(job, self._settings()), waiting.place, query))
        self._class[waiting.place] = classify_job(job, self._settings())
        return self._class[waiting.place]

    def begin(self, waiting: PendingSimJob) -> None:
        """Note that a job has started."""
        if self.index:
            query = self._make_query(waiting.job)
            del self._pending[query][waiting.place], self._class[waiting.place]
            if not self._pending[query]:
                del self._pending[query]
            self._first.discard(waiting.place)

    def end(self, waiting: PendingSimJob, run_s: float) -> None:
        """Learn from a run that has ended."""
        self._changed |= self._add(waiting.job, run_s, waiting.submitted)

    def next_s(self) -> float:
        """Return when the next pending job will have waited enough; inf: none."""
        while self._due and self._due[0][1] not in self._pending.get(self._due[0][2], ()):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else inf

    def list_moves(self, now: float) -> list[tuple[PendingSimJob, float]]:
        """Return the pending jobs whose key in the queue changes, with the new key."""
        moves = list(self._promote(now))
        if self._changed and now >= self._last + _CLASSIFY_S:
            self._last, self._changed = now, False
            self._choose_thresholds(now)
            moves += self._classify(now)
        self.moves += len(moves)
        return moves

    def _promote(self, now: float) -> Iterator[tuple[PendingSimJob, float]]:
        settings = self._settings()
        while self.next_s() <= now:
            _, place, query = heapq.heappop(self._due)
            waiting = self._pending[query][place]
            job = self._make_pending_order(waiting, query, now)
            if has_waited_enough(job, settings):
                self._first.add(place)
                yield waiting, 0
            else:
                due = max(waiting.submitted + compute_most_wait_s(job, settings), now + 1.0)
                heapq.heappush(self._due, (due, place, query))

    def _classify(self, now: float) -> Iterator[tuple[PendingSimJob, float]]:
        settings = self._settings()
        for query, jobs in self._pending.items():
            for place, waiting in jobs.items():
                # Whether a job has waited enough is found by `_promote`.
                job = self._make_pending_order(waiting, query, waiting.submitted)
                found = classify_job(job, settings)
                if found != self._class[place]:
                    self._class[place] = found
                    if place not in self._first:
                        yield waiting, found

    def estimate(self, waiting: PendingSimJob) -> RunTimeEstimate | None:
        """Return the expected run time of a job; None if nothing is known about jobs like it."""
        return self._history.estimate(self._make_query(waiting.job), submit_s=waiting.submitted)

    def get_class(self, waiting: PendingSimJob) -> int:
        """Return the class of a pending job; 0 without an order."""
        return 0 if waiting.place in self._first else self._class.get(waiting.place, 0)

    def classify_attained(self, gpu_seconds: float) -> int:
        """Return the class of a running job by the service that it has had."""
        return classify_attained(gpu_seconds, self._thresholds)

    def _make_pending_order(self, waiting: PendingSimJob, query: RunTimeQuery, now: float) -> PendingOrder:
        job = waiting.job
        return PendingOrder(
            job=job.job,
            gpus=job.gpus,
            waited_s=now - waiting.submitted,
            estimate=self._history.estimate(query, submit_s=waiting.submitted),
            attained_s=waiting.held_s,
            resumes=waiting.held_s > 0,
        )

    def _set_limit(self, waiting: PendingSimJob, query: RunTimeQuery) -> None:
        """Set the limit that backfill assumes while the job waits, and the one that holds once it runs."""
        user_s = draw_user_limit_s(waiting.job)
        waiting.length_s = waiting.running_s = user_s
        if self.limits == PREDICTED_LIMITS:
            found = compute_lower_limit(self._history.estimate(query, submit_s=waiting.submitted), user_s, self.limit)
            if found is not None:
                waiting.length_s = found

    def _make_query(self, job: SimJob) -> RunTimeQuery:
        # A trace without keys has none that the rule `limit` could use. There, jobs of one user with as many GPUs count
        # as one key.
        key = job.model if self.keyed else f"{job.gpus} GPUs" if self.limits == PREDICTED_LIMITS else ""
        return RunTimeQuery(
            user=job.user, key=key, gpus=job.gpus, account=job.account, partition=job.partition or "all"
        )

    def _add(self, job: SimJob, run_s: float, submit_s: float) -> bool:
        """Learn from a run that completed or was cut off; return whether it was one."""
        if job.status not in _COMPLETE and job.status not in _CUT_OFF:
            return False
        self._history.add(
            self._make_query(job), RunTimeSample(run_s=run_s, complete=job.status in _COMPLETE, submit_s=submit_s)
        )
        self._services.append(job.gpus * run_s)
        return True

    def _settings(self) -> OrderSettings:
        return OrderSettings(index=self.index, thresholds=self._thresholds, most_wait_s=self.order.most_wait_s)

    def _choose_thresholds(self, now: float) -> None:
        if now >= self._chosen + _THRESHOLDS_S:
            self._chosen = now
            enough = len(self._services) >= _FEWEST_RUNS
            self._thresholds = choose_thresholds(self._services, self.order.classes) if enough else ()


def make_queue_rules(
    order: str, limits: str, *, history: Sequence[SimJob] = (), keyed: bool = False
) -> QueueRules | None:
    """Return the rules of one run; None if nothing is predicted. ValueError for an unknown name.

    `order`: one of ORDERS, or "". EXACT and FEWEST_GPUS are policies (sim/queue_policies.py), not rules.
    """
    if order and order not in ORDERS:
        raise ValueError(f"there is no order '{order}': {', '.join(ORDERS)}")
    if limits and limits not in LIMITS:
        raise ValueError(f"there are no limits '{limits}': {', '.join(LIMITS)}")
    index = order if order in INDEXES else ""
    if not index and not limits:
        return None
    rules = QueueRules(index=index, limits=limits, keyed=keyed)
    rules.learn(history)
    return rules
