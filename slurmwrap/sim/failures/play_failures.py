"""Simulate one arm: each job through its runs until it ends well, is ended by its user, or is given up. No queue.

A run starts when the job is submitted, or when its retry is due: GPU time is counted, not waiting. slurmwrap's
decisions are made by production's code: policy.retry_decision (sim_judge.py), strikes, lemon scores and node exclusion
(sim_nodes.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from math import exp, inf, log

from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.decision import RetryDecision
from slurmwrap.policy.strikes import Fleet
from slurmwrap.prerun.expected_saving import PrerunCase, ScriptHistory, estimate_saving
from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures import sim_nodes as hosts
from slurmwrap.sim.failures.draw_failures import FailingJob, compute_time_to_failure
from slurmwrap.sim.failures.named_random import Purpose
from slurmwrap.sim.failures.sim_judge import FailedRun, JobFate, diagnosis_of, judge_failed_run, record_of
from slurmwrap.sim.failures.sim_nodes import SimNodeHistory, count_wanted_nodes, draw_nodes
from slurmwrap.sim.failures.study_arms import (
    BLIND,
    BY_HAND,
    KILLED,
    NONE,
    OURS,
    FailureWorld,
    GpuTimeAccount,
    RetryArm,
    SimJobState,
    SimRunEnding,
)
from slurmwrap.sim.sim_job import SimJob


# How one run ends: its work is done, its user ends it, its own cause makes it fail, or a node fails.
def determine_ending(
    world: FailureWorld, state: SimJobState, nodes: tuple[int, ...], excluded: frozenset[int]
) -> SimRunEnding:
    """Return what happens first. `excluded`: indices of nodes that this run avoided."""
    failing_job, left = state.failing_job, state.need_s - state.kept_s
    if failing_job.by_node:
        return _end_by_node_of_dump(world, state, nodes, excluded)
    own = compute_time_to_failure(failing_job, world.seed, state.run) if state.ailing else left
    category = failing_job.category if state.ailing and own <= left else KILLED if failing_job.killed else ""
    own = min(own, left)
    first = hosts.draw_time_to_failure(world.hardware, nodes, world.seed, state.job.number, state.run)
    if first >= own:
        return SimRunEnding(ran_s=own, category=category)
    node = hosts.draw_struck_node(world.hardware, nodes, world.seed, state.job.number, state.run)
    gpu = hosts.is_gpu_blamed(world.seed, state.job.number, state.run)
    return SimRunEnding(ran_s=first, category="gpu_hardware" if gpu else "node_failure", node=node, gpu_fault=gpu)


def compute_kept_s(state: SimJobState, progress_s: float, every_s: float | None) -> float:
    """Return how much of `progress_s` the newest checkpoint contains; a job that cannot work resumes nothing."""
    if every_s is None or not state.sound:
        return state.kept_s
    return max(state.kept_s, progress_s // every_s * every_s)


def _end_by_node_of_dump(
    world: FailureWorld, state: SimJobState, nodes: tuple[int, ...], excluded: frozenset[int]
) -> SimRunEnding:
    """Return the ending of a run that failed because of a node.

    A dump records that a node failed, not which one. It is a lemon with the lemons' share of all failures, else a node
    of the run. An avoided lemon fails under no run.
    """
    if state.run:
        return SimRunEnding(ran_s=state.need_s - state.kept_s)
    lemons = sorted(world.hardware.lemons)
    chance, share = world.chance(state.job, Purpose.BY_LEMON), world.settings.lemons_cause
    node = lemons[int(chance / share * len(lemons))] if lemons and chance < share else nodes[0]
    if node in excluded:
        return SimRunEnding(ran_s=state.need_s - state.kept_s)
    return SimRunEnding(ran_s=state.failing_job.run_s, category="node_failure", node=node)


# What slurmwrap learns of a run that failed: the classifier may misread a log, Slurm and the kernel are right.

# Recorded by Slurm or the kernel, not in the log: the classifier neither misreads them nor takes other failures for
# them.
_NOT_FROM_LOGS = ("cpu_oom", "job_preempted", "node_failure", "gpu_hardware", "time_limit")


def make_failed_run(
    world: FailureWorld,
    state: SimJobState,
    ending: SimRunEnding,
    nodes: tuple[int, ...],
    began_s: float,
    progress_s: float,
    kept_s: float,
) -> FailedRun:
    """Return the run as the input of production's records."""
    names, failing_job, observed = world.hardware.names, state.failing_job, classify_observed(world, state, ending)
    input_read_correctly = observed == ending.category == "incorrect_inputs"
    broken = input_read_correctly and world.chance(state.job, Purpose.OWN_READ) < world.settings.own_read
    return FailedRun(
        job=state.job,
        uid=failing_job.uid,
        run=state.run,
        began_s=began_s,
        ended_s=began_s + ending.ran_s,
        nodes=tuple(names[node] for node in nodes),
        told=observed,
        node=names[ending.node] if ending.node >= 0 else "",
        conclusive=ending.gpu_fault,
        input_path=f"/{make_fault_digest(failing_job)}" if input_read_correctly else "",
        digest=make_fault_digest(failing_job) if input_read_correctly else "",
        fault="is broken" if broken else "",
        mem_mib=state.mem_mib,
        resumed=state.kept_s > 0,
        progress_s=progress_s,
        kept_s=kept_s,
    )


def classify_observed(world: FailureWorld, state: SimJobState, ending: SimRunEnding) -> str:
    """Return the category that the classifier gives. The same log is read in the same way each time."""
    if ending.category in _NOT_FROM_LOGS or ending.node >= 0:
        return ending.category
    run = state.run if state.failing_job.curable else 0
    if world.chance(state.job, Purpose.MISREAD, run) >= world.settings.misread:
        return ending.category
    harmless = world.chance(state.job, Purpose.HARMLESS, run) < world.settings.misread_harmless
    share = world.chance(state.job, Purpose.MISTAKEN_FOR, run)
    return choose_wrong_category(ending.category, share, harmless=harmless)


def choose_wrong_category(category: str, share: float, *, harmless: bool = False) -> str:
    """Return another category, more likely the more common it is (by table 7's trials).

    `harmless`: one that leads to the same decision, if there is one; else one that leads to another decision.
    """
    known = [c for c in published_rates.PHILLY if c.category != category and c.category not in _NOT_FROM_LOGS]
    decision = CATEGORIES[category].decision
    others = [c for c in known if (CATEGORIES[c.category].decision == decision) is harmless] or known
    left = share * sum(cause.trials for cause in others)
    for cause in others:
        left -= cause.trials
        if left < 0:
            return cause.category
    return others[-1].category


def make_fault_digest(failing_job: FailingJob) -> str:
    """Return a text that stands for the digest of the broken input."""
    return f"input-{failing_job.fault}"


DAY_S = 86_400.0
# Slurm's id of an array task.
_TASK = re.compile(r"(\d+)_\d+", re.ASCII)
# Slurm's time limits are minutes.
_SHORTEST_LIMIT_S = 60.0
_AGAIN = RetryDecision(decision="retry", reason="whatever the reason")


def play_arm(world: FailureWorld, arm: RetryArm) -> GpuTimeAccount:
    """Return the account of one arm."""
    return _ArmSimulation(world, arm).run_all()


def _make_fingerprint(job: SimJob) -> tuple[object, ...]:
    """Return what jobs with the same fingerprint have in common: their array, else user, name and shape."""
    task = _TASK.fullmatch(job.job)
    if task:
        return ("array", task[1], job.user)
    named = job.user and job.model
    return ("named", job.user, job.model, job.gpus, job.nodes) if named else ("job", job.number)


def _find_work_s(job: SimJob, failing_job: FailingJob | None) -> float:
    """Return how long the job runs if it does not fail: longer than until the failure that was drawn for it."""
    if failing_job is None or not failing_job.category:
        return job.work_s
    return max(job.work_s, failing_job.run_s + 1)


class _ArmSimulation:
    """The simulation of one arm: its jobs in time order, its account, its blocked inputs and its excluded nodes."""

    def __init__(self, world: FailureWorld, arm: RetryArm) -> None:
        self.world, self.arm, self.account = world, arm, GpuTimeAccount()
        self.settings, self.hardware = world.settings, world.hardware
        self.fleet = Fleet(nodes=world.nodes)
        self.watch = SimNodeHistory(world.nodes, world.config) if arm.exclusion else None
        self.node_index = {node.name: at for at, node in enumerate(world.nodes)}
        # (uid, digest) of blocked inputs → since when.
        self.blocked: dict[tuple[int, str], float] = {}
        # Chains of a dump that slurmwrap runs again itself → until when.
        self.in_hand: dict[int, float] = {}
        # Chain → the user's own successful run, which is not needed if slurmwrap's run ends well.
        self.put_off: dict[int, SimJobState] = {}
        self.passed: set[object] = set()  # fingerprints whose newest pre-run passed
        self.due: list[tuple[float, int, SimJobState]] = []  # retries by start time

    def run_all(self) -> GpuTimeAccount:
        for at, state in self._in_time():
            self._run(state, at)
        self._count_excluded()
        self.account.replaced = len(self.put_off)
        return self.account

    def _in_time(self) -> Iterator[tuple[float, SimJobState]]:
        """Yield first runs and retries in the order of their starts."""
        for job in sorted(self.world.jobs, key=lambda job: job.submit_s):
            while self.due and self.due[0][0] <= job.submit_s:
                at, _, state = heappop(self.due)
                yield at, state
            failing_job = self.world.doomed.get(job.number)
            if not self._enters(job, failing_job):
                continue
            if failing_job is None and self._sound_jobs_need_no_run:
                self._count_success(job)
            else:
                yield job.submit_s, self._make_state(job, failing_job)
        while self.due:
            at, _, state = heappop(self.due)
            yield at, state

    @property
    def _sound_jobs_need_no_run(self) -> bool:
        """Whether a job without a drawn failure needs no simulation: no node can fail, and node exclusion is off."""
        return self.watch is None and not self.hardware.healthy_rate and not self.hardware.lemon_rate

    def _count_success(self, job: SimJob) -> None:
        self.account.runs += 1
        self.account.completed += 1
        self.account.productive += job.work_s * job.gpus

    # ---------------------------------------------------------------------------------- before the first run

    def _enters(self, job: SimJob, failing_job: FailingJob | None) -> bool:
        """Return whether the job runs at all: it is neither refused nor stopped by its pre-run."""
        if failing_job is not None and self.arm.retries == OURS and self._is_blocked(job, failing_job):
            self.account.refused += 1
            return self._end_without_run(failing_job.category, 0.0)
        if failing_job is not None and job.submit_s <= self.in_hand.get(failing_job.chain, -inf):
            return self._spare(job, failing_job)
        if not self.arm.trial:
            return True
        if not self._gets_prerun(job, failing_job):
            return failing_job is None or not self._stop_by_check(failing_job, job)
        fails_s = failing_job.run_s if failing_job is not None and failing_job.category else job.work_s
        trial_s = min(self.settings.trial_s + self.settings.rehearsal_s, fails_s)
        self.account.trials += trial_s
        self._charge(job, trial_s)
        if failing_job is not None and (failing_job.shown or self._is_read_before(failing_job, job)):
            self.account.stopped_by_trial += 1
            self.account.waited_in_vain_s += self.world.waited_s.get(job.number, 0.0)
            self.passed.discard(_make_fingerprint(job))
            self._block(failing_job, job.submit_s + trial_s)
            return self._end_without_run(failing_job.category, trial_s)
        self.passed.add(_make_fingerprint(job))
        sound = failing_job is None or not failing_job.category or failing_job.curable
        if sound and self.world.chance(job, Purpose.FALSE_FAIL) < self.settings.false_fails:
            self.account.false_stops += 1
            return self._end_without_run("", trial_s)
        return True

    def _is_read_before(self, failing_job: FailingJob, job: SimJob) -> bool:
        """Return whether a broken input is found that the three steps do not reach: the job waits while it is read."""
        late = failing_job.checked and failing_job.run_s > self.settings.trial_s
        return late and (self.settings.checks_every_job or self._waits(job))

    def _stop_by_check(self, failing_job: FailingJob, job: SimJob) -> bool:
        """Stop a job without a pre-run if its inputs are read as well, and one is broken; return whether it did."""
        if not (self.settings.checks_every_job and failing_job.checked):
            return False
        self._block(failing_job, job.submit_s)
        self._end_without_run(failing_job.category, 0.0)
        return True

    def _gets_prerun(self, job: SimJob, failing_job: FailingJob | None) -> bool:
        """Return whether the job gets a pre-run (as in gsub.prepare.choose_prerun and weigh_prerun)."""
        prerun = self.world.config.prerun
        if job.gpus < prerun.min_gpus:
            return False
        if job.gpus == 1 and not self._waits(job):
            return False
        same = _make_fingerprint(job)
        if same in self.passed and (same[0] == "array" or self.world.chance(job, Purpose.REUSE) < self.settings.reuse):
            return False
        if self.world.chance(job, Purpose.PASSED) < self.settings.passed_before:
            return False
        return prerun.select == "all" or self._is_worthwhile(job, _find_work_s(job, failing_job))

    def _is_worthwhile(self, job: SimJob, work_s: float) -> bool:
        """Return whether production expects that a pre-run saves more than it costs. The user's history is not known.

        `work_s`: how long the job would run if it did not fail, which its user knows.
        """
        low, high = map(log, self.settings.limit_factors)
        drawn = work_s * exp(low + (high - low) * self.world.chance(job, Purpose.LIMIT))
        case = PrerunCase(
            gpus=job.gpus,
            time_limit_s=job.limit_s or max(drawn, _SHORTEST_LIMIT_S),
            history=ScriptHistory(prerun_s=self.settings.trial_s + self.settings.rehearsal_s),
            starts_now=not self._waits(job),
            wait_weight=self.world.config.prerun.wait_weight,
        )
        return estimate_saving(case).worthwhile

    def _waits(self, job: SimJob) -> bool:
        """Return whether the job finds no free GPUs; a one-GPU job that does not wait is its own pre-run.

        A dump knows how long it waited.
        """
        known = self.world.waited_s.get(job.number)
        if known is not None:
            return known > self.settings.at_once_s
        return self.world.chance(job, Purpose.WAITS) < self.settings.one_gpu_waits

    def _spare(self, job: SimJob, failing_job: FailingJob) -> bool:
        """Do not submit a job that slurmwrap is running again; keep one that would end well, because it may still be
        needed.
        """
        if failing_job.category:
            self.account.spared += 1
        else:
            self.put_off[failing_job.chain] = self._make_state(job, failing_job)
        return False

    def _charge(self, job: SimJob, gpu_s: float) -> None:
        self.account.cost_by_day[int(job.submit_s // DAY_S)] += gpu_s

    def _is_blocked(self, job: SimJob, failing_job: FailingJob) -> bool:
        if failing_job.fault < 0:
            return False
        return self.blocked.get((failing_job.uid, make_fault_digest(failing_job)), inf) <= job.submit_s

    def _block(self, failing_job: FailingJob, at: float) -> None:
        """Block the input: the pre-run read it itself (as in reconcile/ingest_spool.py)."""
        if self.arm.retries == OURS and failing_job.fault >= 0:
            self.blocked.setdefault((failing_job.uid, make_fault_digest(failing_job)), at)

    def _end_without_run(self, category: str, after_s: float) -> bool:
        if category:
            self.account.struck[category] += 1
        self._count_unsuccessful(0.0, after_s)
        return False

    def _make_state(self, job: SimJob, failing_job: FailingJob | None) -> SimJobState:
        nodes = count_wanted_nodes(job, self.hardware)
        share = job.gpus / nodes / self.hardware.gpus * self.hardware.mem_mib
        asked = job.mem_mib / nodes if job.mem_mib else share
        return SimJobState(
            job=job,
            failing_job=failing_job or FailingJob(number=job.number, uid=0),
            need_s=_find_work_s(job, failing_job),
            mem_mib=max(1, int(asked)),
            nodes=nodes,
        )

    # ---------------------------------------------------------------------------------------------- one run

    def _run(self, state: SimJobState, at: float) -> None:
        """Simulate one run: choose its nodes, determine how it ends, and record the result."""
        job = state.job
        excluded = self.watch.excluded(at, nodes=state.nodes, gpus=job.gpus) if self.watch else frozenset[int]()
        nodes = draw_nodes(self.hardware, state.nodes, excluded | state.avoid, self.world.seed, job.number, state.run)
        ending = determine_ending(self.world, state, nodes, excluded)
        self.account.runs += 1
        if self.watch is not None:
            self.watch.ran([self.hardware.names[node] for node in nodes], at, at + ending.ran_s)
        if ending.category and ending.category != KILLED:
            self._failed(state, ending, nodes, at)
            return
        if ending.category:
            self.account.killed += state.need_s * job.gpus
        else:
            self.account.productive += state.need_s * job.gpus
            self.account.completed += 1
        self._settle(state, None if ending.category else at)

    # ------------------------------------------------------------------------------------------ its failure

    def _failed(self, state: SimJobState, ending: SimRunEnding, nodes: tuple[int, ...], at: float) -> None:
        """Handle a failed run: record it, decide what follows, and either queue the next run or give the job up.

        A user whose job was stopped although another run would help may come back by hand (`comes_back`).
        """
        end = at + ending.ran_s
        if ending.node >= 0 and ending.node not in nodes:
            # The node of a dump's failure may not be among the drawn ones.
            nodes = (ending.node, *nodes[1:])
        failed = self._record_failure(state, ending, nodes, at)
        if self.watch is not None:
            diagnosis = diagnosis_of(failed)
            self.watch.failed(diagnosis, record_of(failed, diagnosis), end)
        fate = self._decide(state, ending, failed)
        state.run += 1
        if fate is not None and not fate.again and state.sound and self.settings.comes_back:
            fate = self._by_hand_again(state, misread=failed.told != ending.category)
        if fate is None or not fate.again or state.run >= self.settings.max_runs:
            self._hold(state, end)
            self._submit_after_all(state.failing_job.chain, end)
            self._give_up(state, end, misread=failed.told != ending.category)
            return
        self._hold(state, inf)
        self._change(state, fate)
        heappush(self.due, (end + fate.delay_s, state.job.number, state))

    def _hold(self, state: SimJobState, until_s: float) -> None:
        """Record that slurmwrap runs the job again: its user does not submit it again meanwhile."""
        chain = state.failing_job.chain
        if chain >= 0 and (until_s == inf or chain in self.in_hand):
            self.in_hand[chain] = until_s

    def _submit_after_all(self, chain: int, at: float) -> None:
        """Let the user run the job after slurmwrap gave up, later than they would have."""
        late = self.put_off.pop(chain, None)
        if late is not None:
            heappush(self.due, (at, late.job.number, late))

    def _record_failure(self, state: SimJobState, ending: SimRunEnding, nodes: tuple[int, ...], at: float) -> FailedRun:
        """Return the failed run, and record what it lost and kept."""
        account, progress = self.account, state.kept_s + ending.ran_s
        kept = compute_kept_s(state, progress, self.settings.checkpoint_s)
        failed = make_failed_run(self.world, state, ending, nodes, at, progress, kept)
        account.failed_runs += 1
        account.node_failures += ending.node >= 0
        if state.first_failed_s is None:
            state.first_failed_s = at + ending.ran_s
            account.struck[ending.category] += 1
        state.lost.append((ending.category, (progress - kept) * state.job.gpus))
        state.kept_s = kept
        state.failures += 1
        state.met += ending.node < 0
        return failed

    def _decide(self, state: SimJobState, ending: SimRunEnding, failed: FailedRun) -> JobFate | None:
        """Return what follows; None if nothing runs the job again, or Slurm did (then the dump contains that run)."""
        if state.failing_job.requeued:
            return None
        if self.arm.retries == OURS:
            return self._decide_by_policy(state, failed)
        delay = self._get_blind_delay(state, ending)
        return None if delay is None else JobFate(decision=_AGAIN, again=True, delay_s=delay)

    def _get_blind_delay(self, state: SimJobState, ending: SimRunEnding) -> float | None:
        """Return the seconds until the job runs again; None if it does not."""
        settings, arm, failing_job = self.settings, self.arm, state.failing_job
        if arm.retries == NONE:
            return None
        if arm.retries == BY_HAND:
            if ending.node >= 0:
                return settings.requeue_s  # Slurm does it
            return settings.hand_delay_s if failing_job.curable or state.met <= settings.hand_retries else None
        assert arm.retries == BLIND
        if settings.blind_retries is not None:
            return settings.requeue_s if state.failures <= settings.blind_retries else None
        own = ending.node < 0 and not failing_job.curable
        return None if own and state.met >= failing_job.trials else settings.requeue_s

    def _decide_by_policy(self, state: SimJobState, failed: FailedRun) -> JobFate:
        fate = judge_failed_run(failed, state.before, self.fleet, self.world.config)
        record = record_of(failed, diagnosis_of(failed))
        state.before.append(replace(record, decision=fate.decision.decision))
        for block in fate.decision.blocked:
            self.blocked.setdefault((block.uid, block.digest), failed.ended_s)
        return fate

    def _by_hand_again(self, state: SimJobState, *, misread: bool) -> JobFate:
        """Count a false stop; the user submits the job again, as a job without a past."""
        self.account.false_stops += 1
        self.account.budget_stops += not misread
        state.before.clear()
        return JobFate(decision=_AGAIN, again=True, delay_s=self.settings.hand_delay_s)

    def _change(self, state: SimJobState, fate: JobFate) -> None:
        if fate.mem_mib is not None:
            state.grown *= fate.mem_mib / state.mem_mib
            state.mem_mib = fate.mem_mib
        if fate.avoid:
            state.avoid |= {self.node_index[name] for name in fate.avoid if name in self.node_index}

    # ---------------------------------------------------------------------------------------------- its end

    def _settle(self, state: SimJobState, last_start: float | None) -> None:
        """Record a job that ended well (with the start of its last run) or that its user ended."""
        for category, lost in state.lost:
            self.account.by_category[category] += lost
            self.account.wasted += lost
            self._charge(state.job, lost)
        self.account.again += sum(lost for _, lost in state.lost[1:])
        if state.first_failed_s is not None and last_start is not None:
            self.account.cured += 1
            self.account.cured_by[state.lost[0][0]] += 1
            self.account.cured_after_s += last_start - state.first_failed_s

    def _give_up(self, state: SimJobState, at: float, *, misread: bool) -> None:
        """Record a job that failed for good. All its GPU time is lost, including what its checkpoint contains.

        It counts as a false stop if slurmwrap's policy stopped it although another run would have cured it.
        """
        account, lost_s = self.account, state.gpu_s_lost
        kept = (state.lost[-1][0], state.kept_s * state.job.gpus)
        for category, lost in (*state.lost, kept):
            account.by_category[category] += lost
        account.again += sum(lost for _, lost in state.lost[1:])
        self._charge(state.job, lost_s)
        if self.arm.retries == OURS and self.arm.base != NONE and state.sound:
            account.false_stops += 1
            account.budget_stops += not misread
            account.false_stopped += lost_s
        else:
            account.given_up += state.sound
            account.wasted += lost_s
        self._count_unsuccessful(lost_s, at - state.job.submit_s)

    def _count_unsuccessful(self, gpu_s: float, after_s: float) -> None:
        """Record that the job failed for good, which its user learns so long after submission."""
        self.account.unsuccessful += 1
        self.account.unsuccessful_gpu_s += gpu_s
        self.account.told_after_s.append(after_s)

    def _count_excluded(self) -> None:
        for day in self.watch.days if self.watch is not None else ():
            self.account.excluded_days += len(day)
            self.account.excluded_lemon_days += len(day & self.hardware.lemons)
