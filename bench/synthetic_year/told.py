"""Write the history of each call to a Sink: its pre-run, its runs, the decisions, the actions, and their records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.fast_dataclasses import fields
from slurmwrap.model.decision import BlockedInput, PlannedAction
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord, JobRun, PrerunRecord, QueueDelay, StrikeRecord, intended
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.policy import blocked_inputs, requeue
from slurmwrap.policy.requeue import RequeueSpec
from slurmwrap.policy.strikes import make_drain_actions, make_strikes
from slurmwrap.store import record_rows
from synthetic_year import hooks, texts
from synthetic_year.calls import DAY_S, Call, Caller
from synthetic_year.faults import Fault, NodeFaults, Trouble, Troubles
from synthetic_year.run import Shape, alone, run_of, shape_of
from synthetic_year.sink import Sink
from synthetic_year.site import CLUSTER, Site

_BUDGET = 3
_HELD_OUT = next((f.name for f in fields(Submission) if f.name in ("holdout", "held_out")), "")
_FAILED = frozenset({"success", "cancelled"})


class Teller:
    """Writes the history of one site, call by call in the order of time."""

    def __init__(self, site: Site, caller: Caller, sink: Sink, seed: int, *, until: float) -> None:
        self._site, self._caller, self._sink, self._until = site, caller, sink, until
        self._dice = random.Random(f"told {seed}")
        self._faults, self._troubles = NodeFaults(site, seed, sink), Troubles(site, seed, sink)
        self._next_job, self._next_action = 1000, 1
        self._arrays: dict[int, tuple[int, int]] = {}  # uid -> array's job id, next task
        self._blocked: dict[str, float] = {}
        self._observed_from = self._whole_from = 0.0

    def leave_out(self, *, before: float, observations: float) -> None:
        """Omit what pruning would remove at once: details of runs older than `before`, and observations."""
        self._whole_from, self._observed_from = before, observations

    def tell(self, calls: Sequence[Call], since: float, until: float) -> None:
        """Write the history of `calls`, which were submitted within [since, until)."""
        self._faults.between(since, until)
        self._troubles.between(since, until)
        for call in calls:
            self._one(call)

    def _one(self, call: Call) -> None:
        job_id = self._number()
        shape = shape_of(call, self._site, self._dice)
        if not call.gsub:
            self._runs(call, shape, job_id, None, call.at)
            return
        submission, begins = self._submitted(call, shape, job_id)
        self._sink.add(record_rows.SUBMISSIONS, submission)
        if call.at >= self._observed_from:
            self._sink.add(record_rows.OBSERVATIONS, hooks.of_submission(submission, self._dice))
        if begins is not None:
            self._runs(call, shape, job_id, submission, begins)

    def _number(self) -> int:
        self._next_job += 1
        return self._next_job

    # Before the job

    def _submitted(self, call: Call, shape: Shape, job_id: int) -> tuple[Submission, float | None]:
        """Write the gsub call; return when its job may start, None if its pre-run stopped it."""
        rates, dice = self._site.rates, self._dice
        fingerprint = sha256(f"{call.script_sha256}:{call.version}".encode()).hexdigest()
        submission = shape.submission(call, job_id, fingerprint, dice, whole=call.at >= self._whole_from)
        if call.forced:
            return replace(submission, forced=("prerun",), prerun_mode="off"), call.at
        held_out = dice.random() < rates.holdout
        if held_out:
            return replace(submission, prerun_mode="off", **({_HELD_OUT: True} if _HELD_OUT else {})), call.at
        own = call.gpus == 1 and dice.random() < rates.own_prerun
        if own or dice.random() < rates.passed_before or call.array:
            return submission, call.at
        prerun_id = self._number()
        submission = replace(submission, prerun_job_id=prerun_id)
        record = self._tried(call, submission, prerun_id)
        stopped = record.verdict.outcome is Outcome.FAIL
        self._sink.add(record_rows.PRERUNS, record)
        self._trial_run(call, shape, record)
        if call.at >= self._observed_from:
            self._sink.add(record_rows.OBSERVATIONS, hooks.of_prerun(record, dice))
        if stopped:
            self._never_ran(call, shape, job_id, record)
        return submission, None if stopped else record.at

    def _tried(self, call: Call, submission: Submission, prerun_id: int) -> PrerunRecord:
        rates, dice = self._site.rates, self._dice
        if call.shown:
            outcome, layer, category = Outcome.FAIL, "exit", call.category
        elif call.category == "success" and dice.random() < rates.false_fail:
            outcome, layer, category = Outcome.FAIL, "exit", "no_signature"
        elif dice.random() < rates.inconclusive:
            outcome, layer, category = Outcome.INCONCLUSIVE, "timeout", ""
        else:
            outcome, layer, category = Outcome.PASS, "optimizer", ""
        seconds = min(call.run_s, 170.0) if category else dice.uniform(25, 175)
        found = texts.diagnosis_of(category) if category else None
        reasons = {Outcome.PASS: "three steps ran", Outcome.INCONCLUSIVE: "no step was seen within 180 s"}
        verdict = Verdict(
            outcome=outcome,
            layer=layer,
            reason=reasons.get(outcome) or f"{call.script} ended with exit code 1",
            steps=3 if outcome is Outcome.PASS else 0,
            seconds=round(seconds, 3),
            category=category,
            evidence=found.evidence if found else (),
            measurement=alone(seconds, dice) if outcome is Outcome.PASS else None,
            input_path=call.input_path if outcome is Outcome.FAIL else "",
            input_fault="it does not exist" if outcome is Outcome.FAIL and call.input_path else "",
        )
        return PrerunRecord(
            cluster=CLUSTER,
            job_id=submission.job_id,
            prerun_job_id=prerun_id,
            uid=call.user.uid,
            at=call.at + 5 + dice.expovariate(1 / 40) + seconds,
            verdict=verdict,
            fingerprint=submission.fingerprint,
            profile_key=submission.profile_key,
            gpus=call.gpus,
            plan=submission.plan,
            released=outcome is not Outcome.FAIL,
        )

    def _trial_run(self, call: Call, shape: Shape, record: PrerunRecord) -> None:
        """Write the pre-run's own job."""
        began = record.at - record.verdict.seconds
        trial = replace(call, name=f"prerun-{call.name}", gpus=1, array=False)
        small = replace(shape, nodes=shape.nodes[:1], gpus=1, cpus=shape.cpus_per_gpu)
        ended = run_of(
            trial,
            small,
            record.prerun_job_id,
            began=began,
            run_s=record.verdict.seconds,
            category="success",
            dice=self._dice,
        )
        self._save(replace(ended, decision="none", decision_reason="nothing failed", reconciled=True), [])

    def _never_ran(self, call: Call, shape: Shape, job_id: int, record: PrerunRecord) -> None:
        """Write Slurm's record of a job that its pre-run cancelled; some are submitted again with --force."""
        shown = run_of(call, shape, job_id, began=record.at, run_s=0.0, category="cancelled", dice=self._dice)
        shown = replace(shown, nodes=(), start_time=None, measurement=None, reconciled=True)
        self._save(replace(shown, decision="none", decision_reason="it was cancelled"), [])
        if self._dice.random() < self._site.rates.forced_after_fail:
            self._caller.later(self._caller.forced(call, well=record.verdict.category == "no_signature"))

    # Its runs

    def _runs(self, call: Call, shape: Shape, job_id: int, submission: Submission | None, begins: float) -> None:
        address = self._address(call, job_id)
        waited_s = shape.wait_s(call, self._dice)
        eligible = begins
        category, run_s, spent = call.category, call.run_s, 0
        for restarts in range(_BUDGET + 1):
            start = eligible + waited_s
            if start >= self._until:
                return
            fault = self._faults.take(start) if category == "success" else None
            trouble = self._troubles.take(start + run_s, shape) if category == "success" and fault is None else None
            if fault is not None:
                shape = shape.on(fault.node)
            ending = fault.category if fault else trouble.category if trouble else category
            record = run_of(
                call, shape, job_id, began=start, run_s=run_s, category=ending, dice=self._dice, address=address,
                restarts=restarts, eligible=eligible, until=self._until, submission=submission,
            )  # fmt: skip
            if trouble is not None:
                trouble.add(record)
                record = replace(record, incident=trouble.incident_id)
            delay = self._waited(record, call, eligible, start, submission)
            again, record, actions = self._decided(record, call, submission, spent)
            self._save(record, actions, delay)
            self._aftermath(record, fault, trouble)
            if again is None or record.end_time is None:
                return
            spent += trouble is None
            eligible = record.end_time + again
            waited_s = self._dice.expovariate(1 / 300)
            if fault or trouble or self._cured(call, ending):
                category, run_s = "success" if not (fault or trouble) else category, self._site.rates.run_median_s * 4
            shape = shape.on(self._site.some_nodes(1, self._dice)[0])

    def _address(self, call: Call, job_id: int) -> str:
        if not call.array:
            return str(job_id)
        array, task = self._arrays.get(call.user.uid, (job_id, 0))
        if task >= 40:
            array, task = job_id, 0
        self._arrays[call.user.uid] = (array, task + 1)
        return f"{array}_{task}"

    def _cured(self, call: Call, category: str) -> bool:
        if category in ("cpu_oom", "time_limit"):
            return self._dice.random() < 0.7
        return call.curable and self._dice.random() < 0.5

    def _decided(
        self, run: JobRun, call: Call, submission: Submission | None, spent: int
    ) -> tuple[float | None, JobRun, list[PlannedAction]]:
        """Return when the next run may start (None: never), the record with the decision, and the actions for Slurm."""
        found = run.diagnosis
        if found is None:
            return None, run, []
        drains = list(make_drain_actions(found, run))
        if found.category in _FAILED:
            why = "it was cancelled" if found.category == "cancelled" else "nothing failed"
            return None, replace(run, decision="none", decision_reason=why, reconciled=True), []
        rule = CATEGORIES[found.category].decision
        if rule == "blacklist_input":
            return None, *self._blacklisted(run)
        resumes = found.category == "time_limit" and found.resumed
        if rule in ("stop", "none") or (found.category == "time_limit" and not resumes):
            return None, replace(run, decision="stop", decision_reason=found.advice, reconciled=True), drains
        limit = 1 if found.category == "no_signature" else _BUDGET
        if submission is None or not submission.retry:
            who = "it was not submitted by gsub" if submission is None else "it was submitted without --retry"
            why = f"{found.category}; not run again: {who}"
            return None, replace(run, decision="stop", decision_reason=why, reconciled=True), drains
        if spent >= limit:
            why = f"failed {spent + 1} times of {found.category}; the limit is {limit} retries"
            return None, replace(run, decision="stop", decision_reason=why, reconciled=True), drains
        return self._again(run, rule, drains, f"{found.category}, retry {spent + 1} of {limit}")

    def _again(
        self, run: JobRun, rule: str, drains: list[PlannedAction], reason: str
    ) -> tuple[float, JobRun, list[PlannedAction]]:
        avoid = run.nodes if rule == "retry_elsewhere" and len(run.nodes) == 1 else ()
        memory = ("MinMemoryNode", (run.mem_mib_per_node or 1024) * 3 // 2) if rule == "resize" else None
        delay = self._dice.randint(60, 240) if rule == "retry" else 0
        std_out = requeue.retry_output(run.std_out, run.restarts)
        again = RequeueSpec(rule=rule, reason=reason, avoid=avoid, memory=memory, delay_s=delay, std_out=std_out)
        asked = [*drains, *requeue.make_requeue_actions(again, JobRecord(job_id=run.attempt.job_id))]
        told = [reason, *([f"away from {avoid[0]}"] if avoid else []), *([f"after {delay} s"] if delay else [])]
        start_at = float(run.end_time or 0) + 20 + delay
        decided = replace(run, decision=rule, decision_reason="; ".join(told), retry_at=start_at, reconciled=True)
        return 20.0 + delay, decided, asked

    def _blacklisted(self, run: JobRun) -> tuple[JobRun, list[PlannedAction]]:
        assert run.diagnosis is not None
        path, at = run.diagnosis.input_path, float(run.end_time or 0)
        reason = f"{path}: it does not exist"
        block = BlockedInput(
            digest=sha256(path.encode()).hexdigest(),
            path=path,
            uid=run.uid,
            reason=reason,
            at=at,
            job_id=run.attempt.job_id,
        )
        if at - self._blocked.get(path, 0.0) > 14 * DAY_S:  # most inputs are cleared or replaced at some time
            self._blocked[path] = at
        if self._until - at < 30 * DAY_S:
            self._sink.add(record_rows.BLOCKED_INPUTS, block)
        decided = replace(run, decision="blacklist_input", decision_reason=reason, reconciled=True)
        return decided, list(blocked_inputs.make_block_actions((block,)))

    def _waited(
        self, run: JobRun, call: Call, eligible: float, start: float, submission: Submission | None
    ) -> QueueDelay | None:
        if submission is None:
            return None
        total = max(0.0, start - eligible)
        scattered = total * self._dice.random() * min(1.0, call.gpus / 32) if call.gpus > 1 else 0.0
        unknown = min(total - scattered, 15.0) if self._dice.random() < 0.1 else 0.0
        return QueueDelay(
            attempt=run.attempt,
            address=run.address,
            user=run.user,
            gpus=run.gpus,
            eligible_at=eligible,
            seen_at=start,
            fair_share_s=total - scattered - unknown,
            fragmentation_s=scattered,
            unknown_s=unknown,
            waits_for="fragmentation" if scattered > total / 2 else "fair share",
            over=True,
        )

    # What is kept of it

    def _save(self, run: JobRun, asked: Sequence[PlannedAction], delay: QueueDelay | None = None) -> None:
        if delay is not None:
            run = replace(run, waited=delay) if delay.seen_at >= self._whole_from else run
            self._sink.add(record_rows.DELAYS, delay)
        self._sink.add(record_rows.ATTEMPTS, run)
        at = float(run.end_time or run.attempt.submit_time) + 12
        for ruled in asked:
            self._sink.add(record_rows.ACTIONS, self._action(run, ruled, at), action_id=self._next_action)
            self._next_action += 1
        if run.start_time is not None and at >= self._observed_from:
            for observation in hooks.of_run(run, self._dice):
                self._sink.add(record_rows.OBSERVATIONS, observation)

    def _action(self, run: JobRun, ruled: PlannedAction, at: float) -> ActionRecord:
        failed = "Requested operation is presently disabled" if self._dice.random() < 0.005 else ""
        begun = intended(run.attempt, ruled, "act", at, action_id=self._next_action)
        return replace(begun, done_at=at + 0.2, error=failed)

    def _aftermath(self, run: JobRun, fault: Fault | None, trouble: Trouble | None) -> None:
        """Write strikes and, if a node failed, its kernel lines, its time out of service and its repair."""
        found = run.diagnosis
        if found is None or trouble is not None:
            return
        at = float(run.end_time or 0)
        for strike in make_strikes(found, run):
            struck = StrikeRecord(
                node=strike.node,
                cause=strike.cause,
                conclusive=strike.conclusive,
                text=strike.text,
                at=at + 12,
                job_id=run.attempt.job_id,
                uid=run.uid,
            )
            key = {"strike_id": None, "cluster": CLUSTER, "submit_time": run.attempt.submit_time}
            self._sink.add(record_rows.STRIKES, struck, **key)
        if fault is not None:
            self._faults.follow(fault, run)
