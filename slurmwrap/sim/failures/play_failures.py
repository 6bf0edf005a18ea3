"""Plays one world: each job through its runs until it ends well, is ended by its user, or is given up. No queue.

A run starts when the job is submitted, or when its retry is due: GPU time is counted, not waiting. What slurmwrap
decides is decided by production: policy.decide (sim_judge.py), strikes, lemon scores and avoidance
(sim_nodes.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from math import inf

from slurmwrap.model.decision import RetryDecision
from slurmwrap.policy.strikes import Fleet
from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures import sim_nodes as hosts
from slurmwrap.sim.failures.draw_failures import FailingJob, again_s
from slurmwrap.sim.failures.named_random import Purpose
from slurmwrap.sim.failures.sim_judge import FailedRun, JobFate, diagnosis_of, judge_failed_run, record_of
from slurmwrap.sim.failures.sim_nodes import SimNodeHistory, draw_nodes, nodes_wanted
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


# How one run ends: its work is done, its user ends it, its own cause strikes, or a node fails.
def ending_of(
    world: FailureWorld, state: SimJobState, nodes: tuple[int, ...], excluded: frozenset[int]
) -> SimRunEnding:
    """What comes first. `excluded`: places of nodes that this run was kept away from."""
    failing_job, left = state.failing_job, state.need_s - state.kept_s
    if failing_job.by_node:
        return _end_by_node_of_dump(world, state, nodes, excluded)
    own = again_s(failing_job, world.seed, state.run) if state.ailing else left
    category = failing_job.category if state.ailing and own <= left else KILLED if failing_job.killed else ""
    own = min(own, left)
    first = hosts.fails_after(world.hardware, nodes, world.seed, state.job.number, state.run)
    if first >= own:
        return SimRunEnding(ran_s=own, category=category)
    node = hosts.draw_struck_node(world.hardware, nodes, world.seed, state.job.number, state.run)
    gpu = hosts.blames_gpu(world.seed, state.job.number, state.run)
    return SimRunEnding(ran_s=first, category="gpu_hardware" if gpu else "node_failure", node=node, gpu_fault=gpu)


def compute_kept_s(state: SimJobState, progress_s: float, every_s: float | None) -> float:
    """Of `progress_s`, what the newest checkpoint holds; a job that cannot work resumes nothing."""
    if every_s is None or not state.sound:
        return state.kept_s
    return max(state.kept_s, progress_s // every_s * every_s)


def _end_by_node_of_dump(
    world: FailureWorld, state: SimJobState, nodes: tuple[int, ...], excluded: frozenset[int]
) -> SimRunEnding:
    """A dump says that a node failed, not which one: a lemon with the lemons' share of all failures, else a node of
    the run. A lemon that is avoided fails under no one."""
    if state.run:
        return SimRunEnding(ran_s=state.need_s - state.kept_s)
    lemons = sorted(world.hardware.lemons)
    chance, share = world.chance(state.job, Purpose.BY_LEMON), world.settings.lemons_cause
    node = lemons[int(chance / share * len(lemons))] if lemons and chance < share else nodes[0]
    if node in excluded:
        return SimRunEnding(ran_s=state.need_s - state.kept_s)
    return SimRunEnding(ran_s=state.failing_job.run_s, category="node_failure", node=node)


# What slurmwrap learns of a run that failed: a log may be misread, Slurm and the kernel are right.

# Recorded by Slurm or the kernel, not by the log: the classifier does not misread them, nor take others for them.
_NOT_FROM_LOGS = ("cpu_oom", "job_preempted", "node_failure", "gpu_hardware", "time_limit")


def failed_run(
    world: FailureWorld,
    state: SimJobState,
    ending: SimRunEnding,
    nodes: tuple[int, ...],
    began_s: float,
    progress_s: float,
    kept_s: float,
) -> FailedRun:
    """The run as production's records are made of it."""
    names, failing_job, told = world.hardware.names, state.failing_job, classify_observed(world, state, ending)
    right = told == ending.category == "incorrect_inputs"
    broken = right and world.chance(state.job, Purpose.OWN_READ) < world.settings.own_read
    return FailedRun(
        job=state.job,
        uid=failing_job.uid,
        run=state.run,
        began_s=began_s,
        ended_s=began_s + ending.ran_s,
        nodes=tuple(names[node] for node in nodes),
        told=told,
        node=names[ending.node] if ending.node >= 0 else "",
        conclusive=ending.gpu_fault,
        input_path=f"/{digest_of(failing_job)}" if right else "",
        digest=digest_of(failing_job) if right else "",
        fault="is broken" if broken else "",
        mem_mib=state.mem_mib,
        resumed=state.kept_s > 0,
        progress_s=progress_s,
        kept_s=kept_s,
    )


def classify_observed(world: FailureWorld, state: SimJobState, ending: SimRunEnding) -> str:
    """The category that the classifier gives. The same log is read the same way each time."""
    if ending.category in _NOT_FROM_LOGS or ending.node >= 0:
        return ending.category
    run = state.run if state.failing_job.curable else 0
    if world.chance(state.job, Purpose.MISREAD, run) >= world.settings.misread:
        return ending.category
    return mistaken_for(ending.category, world.chance(state.job, Purpose.MISTAKEN_FOR, run))


def mistaken_for(category: str, share: float) -> str:
    """Another category, the commoner the likelier (by table 7's trials)."""
    others = [c for c in published_rates.PHILLY if c.category != category and c.category not in _NOT_FROM_LOGS]
    left = share * sum(cause.trials for cause in others)
    for cause in others:
        left -= cause.trials
        if left < 0:
            return cause.category
    return others[-1].category


def digest_of(failing_job: FailingJob) -> str:
    """Stands for the digest of the broken input."""
    return f"input-{failing_job.fault}"


DAY_S = 86_400.0
# Slurm's id of a task of an array.
_TASK = re.compile(r"(\d+)_\d+", re.ASCII)
_AGAIN = RetryDecision(decision="retry", reason="whatever the reason")


def play_arm(world: FailureWorld, arm: RetryArm) -> GpuTimeAccount:
    """One arm's account."""
    return _Playing(world, arm).to_the_end()


def _make_fingerprint(job: SimJob) -> tuple[object, ...]:
    """What jobs with the same fingerprint have in common: the array that they are tasks of, else user, name, shape."""
    task = _TASK.fullmatch(job.job)
    if task:
        return ("array", task[1], job.user)
    named = job.user and job.model
    return ("named", job.user, job.model, job.gpus, job.nodes) if named else ("job", job.number)


class _Playing:
    def __init__(self, world: FailureWorld, arm: RetryArm) -> None:
        self.world, self.arm, self.account = world, arm, GpuTimeAccount()
        self.settings, self.hardware = world.settings, world.hardware
        self.fleet = Fleet(nodes=world.nodes)
        self.watch = SimNodeHistory(world.nodes, world.config) if arm.exclusion else None
        self.place = {node.name: at for at, node in enumerate(world.nodes)}
        self.blocked: dict[tuple[int, str], float] = {}  # (uid, digest) → since when
        self.in_hand: dict[int, float] = {}  # chains of a dump that we run again ourselves → until when
        self.put_off: dict[int, SimJobState] = {}  # chain → its user's own good run, not needed if ours ends well
        self.passed: set[object] = set()  # what the newest pre-run of passed
        self.due: list[tuple[float, int, SimJobState]] = []  # retries, by their start

    def to_the_end(self) -> GpuTimeAccount:
        for at, state in self._in_time():
            self._run(state, at)
        self._count_excluded()
        self.account.replaced = len(self.put_off)
        return self.account

    def _in_time(self) -> Iterator[tuple[float, SimJobState]]:
        """First runs and retries in the order of their starts."""
        for job in sorted(self.world.jobs, key=lambda job: job.submit_s):
            while self.due and self.due[0][0] <= job.submit_s:
                at, _, state = heappop(self.due)
                yield at, state
            failing_job = self.world.doomed.get(job.number)
            if not self._enters(job, failing_job):
                continue
            if failing_job is None and self._nothing_to_see:
                self._ran_well(job)
            else:
                yield job.submit_s, self._life(job, failing_job)
        while self.due:
            at, _, state = heappop(self.due)
            yield at, state

    @property
    def _nothing_to_see(self) -> bool:
        """Of a job in store for which nothing is: no node fails here, and no one asks which it held."""
        return self.watch is None and not self.hardware.healthy_rate and not self.hardware.lemon_rate

    def _ran_well(self, job: SimJob) -> None:
        self.account.runs += 1
        self.account.completed += 1
        self.account.productive += job.work_s * job.gpus

    # ---------------------------------------------------------------------------------- before the first run

    def _enters(self, job: SimJob, failing_job: FailingJob | None) -> bool:
        """Whether it gets to run at all: neither refused nor stopped by its pre-run."""
        if failing_job is not None and self.arm.retries == OURS and self._is_blocked(job, failing_job):
            self.account.refused += 1
            return self._kept_out(failing_job.category, 0.0)
        if failing_job is not None and job.submit_s <= self.in_hand.get(failing_job.chain, -inf):
            return self._spare(job, failing_job)
        if not self.arm.trial or not self._tried(job):
            return True
        fails_s = failing_job.run_s if failing_job is not None and failing_job.category else job.work_s
        trial_s = min(self.settings.trial_s, fails_s)
        self.account.trials += trial_s
        self._charge(job, trial_s)
        if failing_job is not None and failing_job.shown:
            self.account.stopped_by_trial += 1
            self.account.waited_in_vain_s += self.world.waited_s.get(job.number, 0.0)
            self.passed.discard(_make_fingerprint(job))
            self._block(failing_job, job.submit_s + trial_s)
            return self._kept_out(failing_job.category, trial_s)
        self.passed.add(_make_fingerprint(job))
        sound = failing_job is None or not failing_job.category or failing_job.curable
        if sound and self.world.chance(job, Purpose.FALSE_FAIL) < self.settings.false_fails:
            self.account.false_stops += 1
            return self._kept_out("", trial_s)
        return True

    def _tried(self, job: SimJob) -> bool:
        """Whether the job gets a pre-run (gsub.prepare.choose_prerun)."""
        if job.gpus < self.world.config.prerun.min_gpus:
            return False
        if job.gpus == 1 and not self._waits(job):
            return False
        same = _make_fingerprint(job)
        if same in self.passed and (same[0] == "array" or self.world.chance(job, Purpose.REUSE) < self.settings.reuse):
            return False
        return self.world.chance(job, Purpose.PASSED) >= self.settings.passed_before

    def _waits(self, job: SimJob) -> bool:
        """Whether a one-GPU job finds no free GPU: else it is its own pre-run. A dump knows how long it waited."""
        known = self.world.waited_s.get(job.number)
        if known is not None:
            return known > self.settings.at_once_s
        return self.world.chance(job, Purpose.WAITS) < self.settings.one_gpu_waits

    def _spare(self, job: SimJob, failing_job: FailingJob) -> bool:
        """Its user does not submit it again while we run it again; one that would end well may yet be needed."""
        if failing_job.category:
            self.account.spared += 1
        else:
            self.put_off[failing_job.chain] = self._life(job, failing_job)
        return False

    def _charge(self, job: SimJob, gpu_s: float) -> None:
        self.account.cost_by_day[int(job.submit_s // DAY_S)] += gpu_s

    def _is_blocked(self, job: SimJob, failing_job: FailingJob) -> bool:
        if failing_job.fault < 0:
            return False
        return self.blocked.get((failing_job.uid, digest_of(failing_job)), inf) <= job.submit_s

    def _block(self, failing_job: FailingJob, at: float) -> None:
        """The pre-run read the input itself (reconcile.ingest)."""
        if self.arm.retries == OURS and failing_job.fault >= 0:
            self.blocked.setdefault((failing_job.uid, digest_of(failing_job)), at)

    def _kept_out(self, category: str, after_s: float) -> bool:
        if category:
            self.account.struck[category] += 1
        self._over(0.0, after_s)
        return False

    def _life(self, job: SimJob, failing_job: FailingJob | None) -> SimJobState:
        nodes = nodes_wanted(job, self.hardware)
        share = job.gpus / nodes / self.hardware.gpus * self.hardware.mem_mib
        asked = job.mem_mib / nodes if job.mem_mib else share
        return SimJobState(
            job=job,
            failing_job=failing_job or FailingJob(number=job.number, uid=0),
            need_s=job.work_s
            if failing_job is None or not failing_job.category
            else max(job.work_s, failing_job.run_s + 1),
            mem_mib=max(1, int(asked)),
            nodes=nodes,
        )

    # ---------------------------------------------------------------------------------------------- one run

    def _run(self, state: SimJobState, at: float) -> None:
        job = state.job
        excluded = self.watch.excluded(at, nodes=state.nodes, gpus=job.gpus) if self.watch else frozenset[int]()
        nodes = draw_nodes(self.hardware, state.nodes, excluded | state.avoid, self.world.seed, job.number, state.run)
        ending = ending_of(self.world, state, nodes, excluded)
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
        end = at + ending.ran_s
        if ending.node >= 0 and ending.node not in nodes:
            # A dump's failure is of a node that was not drawn.
            nodes = (ending.node, *nodes[1:])
        failed = self._booked(state, ending, nodes, at)
        if self.watch is not None:
            diagnosis = diagnosis_of(failed)
            self.watch.failed(diagnosis, record_of(failed, diagnosis), end)
        outlook = self._outlook(state, ending, failed)
        state.run += 1
        if outlook is not None and not outlook.again and state.sound and self.settings.comes_back:
            outlook = self._by_hand_again(state, misread=failed.told != ending.category)
        if outlook is None or not outlook.again or state.run >= self.settings.max_runs:
            self._hold(state, end)
            self._submit_after_all(state.failing_job.chain, end)
            self._give_up(state, end, misread=failed.told != ending.category)
            return
        self._hold(state, inf)
        self._change(state, outlook)
        heappush(self.due, (end + outlook.delay_s, state.job.number, state))

    def _hold(self, state: SimJobState, until_s: float) -> None:
        """While we run the job again its user does not submit it again."""
        chain = state.failing_job.chain
        if chain >= 0 and (until_s == inf or chain in self.in_hand):
            self.in_hand[chain] = until_s

    def _submit_after_all(self, chain: int, at: float) -> None:
        """We gave up: its user runs it themselves, later than they would have."""
        late = self.put_off.pop(chain, None)
        if late is not None:
            heappush(self.due, (at, late.job.number, late))

    def _booked(self, state: SimJobState, ending: SimRunEnding, nodes: tuple[int, ...], at: float) -> FailedRun:
        """The failed run; what it lost and kept is written down."""
        account, progress = self.account, state.kept_s + ending.ran_s
        kept = compute_kept_s(state, progress, self.settings.checkpoint_s)
        failed = failed_run(self.world, state, ending, nodes, at, progress, kept)
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

    def _outlook(self, state: SimJobState, ending: SimRunEnding, failed: FailedRun) -> JobFate | None:
        """None: no one runs it again; or Slurm did, and nothing is added (the dump has that run)."""
        if state.failing_job.requeued:
            return None
        if self.arm.retries == OURS:
            return self._ours(state, failed)
        delay = self._blindly(state, ending)
        return None if delay is None else JobFate(decision=_AGAIN, again=True, delay_s=delay)

    def _blindly(self, state: SimJobState, ending: SimRunEnding) -> float | None:
        """Seconds until it runs again; None: it does not."""
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

    def _ours(self, state: SimJobState, failed: FailedRun) -> JobFate:
        outlook = judge_failed_run(failed, state.before, self.fleet, self.world.config)
        record = record_of(failed, diagnosis_of(failed))
        state.before.append(replace(record, decision=outlook.decision.decision))
        for block in outlook.decision.blocked:
            self.blocked.setdefault((block.uid, block.digest), failed.ended_s)
        return outlook

    def _by_hand_again(self, state: SimJobState, *, misread: bool) -> JobFate:
        """A false stop: its user submits it again, as a job without a past."""
        self.account.false_stops += 1
        self.account.budget_stops += not misread
        state.before.clear()
        return JobFate(decision=_AGAIN, again=True, delay_s=self.settings.hand_delay_s)

    def _change(self, state: SimJobState, outlook: JobFate) -> None:
        if outlook.mem_mib is not None:
            state.grown *= outlook.mem_mib / state.mem_mib
            state.mem_mib = outlook.mem_mib
        if outlook.avoid:
            state.avoid |= {self.place[name] for name in outlook.avoid if name in self.place}

    # ---------------------------------------------------------------------------------------------- its end

    def _settle(self, state: SimJobState, last_start: float | None) -> None:
        """It ended well (with the start of its last run), or its user ended it."""
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
        self._over(lost_s, at - state.job.submit_s)

    def _over(self, gpu_s: float, after_s: float) -> None:
        """It failed for good, and its user hears of it so long after they submitted it."""
        self.account.unsuccessful += 1
        self.account.unsuccessful_gpu_s += gpu_s
        self.account.told_after_s.append(after_s)

    def _count_excluded(self) -> None:
        for day in self.watch.days if self.watch is not None else ():
            self.account.excluded_days += len(day)
            self.account.excluded_lemon_days += len(day & self.hardware.lemons)
