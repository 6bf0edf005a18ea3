"""Running jobs are looked at in turn; what is found is stored, shown in the Comment, and acted on with consent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, Fuse, Killed, job
from test_reconcile_pass import World, submission, submission_observation

from slurmwrap.config.load_config import RULES, Config, Retry
from slurmwrap.errors import SlurmError
from slurmwrap.model.decision import SlurmAction
from slurmwrap.model.evidence import LogTail, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.running_job import DIVERGED, IDLE, PARTLY_DEAD, STUCK, EarlyFinding, GpuUse
from slurmwrap.model.running_read import RunningNews, RunningRead
from slurmwrap.reconcile import PassSummary, Scope, Services, reconcile_once
from slurmwrap.reconcile.reconcile_context import ReconcilerState

ADVISE = Config(rules=dict.fromkeys(RULES, "observe") | {"early": "advise"})
ACT = Config(rules=ADVISE.rules | {"early": "act"}, retry=Retry(backoff_s=0))
KEY = RunKey(cluster="lab", job_id=81, submit_time=START)


class RunningSite(World):
    """A world in which running jobs write output, count steps and use GPUs."""

    def __init__(self, path: Path, config: Config = ADVISE, scope: Scope | None = None) -> None:
        super().__init__(path, config, scope)
        self.state = ReconcilerState()
        self.new: dict[int, str] = {}
        self.steps: dict[int, dict[str, object]] = {}
        self.reads: list[tuple[int, list[RunningRead]]] = []
        self.unread: set[int] = set()
        self.cpu_s: float | None = None
        self.own_cpu_s = 0.0
        self.cost_s = 0.0

    def services(self, through: Callable[[object], object] = lambda adapter: adapter) -> Services:
        return replace(
            super().services(through),
            read_running=self.read_news,
            step_cpu_s=lambda address: self.cpu_s,
            own_cpu_s=lambda: self.own_cpu_s,
        )

    def read_news(self, uid: int, reads: Sequence[RunningRead]) -> list[RunningNews | None]:
        self.reads.append((uid, list(reads)))
        self.own_cpu_s += self.cost_s * len(reads)
        return [None if one.run.attempt.job_id in self.unread else self._read(one.run.attempt.job_id) for one in reads]

    def _read(self, job_id: int) -> RunningNews:
        text = self.new.pop(job_id, "")
        now = self.clock.now()
        logs = (LogTail(name="/o", text=text, size=len(text), mark="m", modified=now),) if text else ()
        return RunningNews(logs=logs, steps=self.steps.get(job_id, {}))

    def start_job(self, job_id: int = 81, **changes: object) -> None:
        self.add(running_job(job_id, **changes))
        self.spool_observations(submission_observation(submission(job_id, at=START - 1.0)))

    def run(self) -> PassSummary:
        return reconcile_once(self.services(), self.state)

    def look(self, *texts: str, times: int = 1) -> None:
        """One look after the other, each two minutes later, with this new output."""
        for text in texts or ("",) * times:
            self.new[81] = text
            self.clock.sleep(120)
            self.run()

    def count_step(self, count: int) -> None:
        now = self.clock.now()
        steps: dict[str, object] = {"count": count, "per_s": 1.0, "last_at": now, "newest_at": now, "total": 2 * count}
        self.steps[81] = {**steps, "processes": 2, "first_at": START, "source": "optimizer"}

    def use_gpus(self, use: float, processes: Sequence[int] = (1, 1), minutes: int = 90) -> None:
        """Samples of both GPUs until now."""
        began = self.clock.now() - 60 * minutes
        for gpu, running in enumerate(processes):
            self.store.save_gpu_use(
                GpuUse(
                    attempt=KEY, node="n1", gpu=gpu, began=began, interval_s=60, use_pct=(use,) * minutes,
                    mem_mib=(100,) * minutes, processes=(running,) * minutes,
                )
            )  # fmt: skip

    def found(self) -> dict[str, EarlyFinding]:
        return {one.kind: one for one in self.store.early_findings()}

    def comment(self) -> str:
        return self.slurm.records[81].comment

    def verbs(self) -> list[str]:
        return [action.verb.value for action in self.slurm.calls if action.key != "Comment"]


def running_job(job_id: int, **changes: object) -> JobRecord:
    plain = job(
        job_id, state="RUNNING", reason="None", exit_code=0, submit_time=START, eligible_time=START, start_time=START,
        end_time=None, time_limit_s=7 * 86400,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def rows(first: int, number: int, loss: str = "2.5") -> str:
    return "".join(f"step {step}/9000 loss {loss}\n" for step in range(first, first + number))


@pytest.fixture
def site(tmp_path: Path) -> RunningSite:
    site = RunningSite(tmp_path)
    site.start_job()
    return site


def make_acting(path: Path, **settings: object) -> RunningSite:
    site = RunningSite(path, replace(ACT, **settings))  # type: ignore[arg-type]
    site.start_job()
    return site


def lose_rank(site: RunningSite) -> None:
    """Steps, then a rank that ends while the other one waits."""
    site.count_step(100)
    site.look(rows(1, 50))
    site.count_step(200)
    site.look(rows(51, 50) + "srun: error: n1: task 1: Exited with exit code 1\n")


# --- findings --------------------------------------------------------------------------------------------------------


def test_a_loss_that_stays_nan_is_found_and_shown_to_all_without_text_of_the_job(site: RunningSite) -> None:
    site.look(rows(1, 50), rows(51, 4, "nan"))
    assert site.found() == {}
    site.look(rows(55, 3, "nan"))
    found = site.found()[DIVERGED]
    assert (found.n, found.mode, found.action, found.address, found.uid) == (7, "advise", "", "81", 1001)
    assert found.evidence == "the last 7 losses are NaN or infinite: step 57/9000 loss nan"
    assert site.comment() == "slurmwrap: diverged: the last 7 losses are NaN or infinite (slurmwrap why 81)"
    assert site.verbs() == []


def test_what_is_over_is_marked_and_the_comment_removed(site: RunningSite) -> None:
    site.look(rows(1, 50), rows(51, 5, "nan"), rows(56, 5, "nan"))
    began = site.found()[DIVERGED].at
    site.look(rows(61, 50))
    assert (site.found()[DIVERGED].at, site.found()[DIVERGED].gone_at) == (began, site.clock.now())
    assert site.comment() == ""
    site.look(rows(111, 5, "nan"), rows(116, 5, "nan"))
    assert site.found()[DIVERGED].gone_at is None and site.comment().startswith("slurmwrap: diverged")


def test_the_users_own_comment_stays(tmp_path: Path) -> None:
    site = RunningSite(tmp_path)
    site.start_job(comment="for the paper")
    site.look(rows(1, 50), rows(51, 5, "nan"), rows(56, 5, "nan"))
    assert DIVERGED in site.found() and site.comment() == "for the paper"


def test_in_mode_observe_it_is_only_stored(tmp_path: Path) -> None:
    site = RunningSite(tmp_path, replace(ADVISE, rules={"early": "observe"}))
    site.start_job()
    site.look(rows(1, 50), rows(51, 5, "nan"), rows(56, 5, "nan"))
    assert site.found()[DIVERGED].mode == "observe" and site.slurm.calls == []


def test_a_lost_rank_is_found_while_the_others_wait(site: RunningSite) -> None:
    lose_rank(site)
    site.look(times=2)
    assert set(site.found()) == {PARTLY_DEAD}
    assert "task 1: Exited with exit code 1" in site.found()[PARTLY_DEAD].evidence


def test_a_job_without_a_step_on_unused_gpus_is_stuck(site: RunningSite) -> None:
    site.count_step(100)
    site.look()
    site.count_step(200)
    site.look()
    for _ in range(6):
        site.use_gpus(0.0)
        site.look()
    assert set(site.found()) == {STUCK} and "no GPU is in use" in site.found()[STUCK].evidence


def test_a_job_without_a_step_on_gpus_in_use_is_not_stuck(site: RunningSite) -> None:
    site.count_step(100)
    for _ in range(40):
        site.look()
        site.use_gpus(80.0)
    assert site.found() == {}


def test_the_cpu_time_of_the_steps_decides_where_no_gpu_is_sampled(site: RunningSite) -> None:
    site.count_step(100)
    site.look()
    site.count_step(200)
    site.look()
    for _ in range(7):
        site.cpu_s = 500.0
        site.look()
    assert "its CPUs are idle" in site.found()[STUCK].evidence


def test_a_gpu_without_a_process_is_idle(site: RunningSite) -> None:
    for _ in range(8):
        site.use_gpus(50.0, processes=(1, 0))
        site.look()
    assert site.found()[IDLE].evidence == "no process on GPU 1 of n1 for 15 min"


# --- turns and limits -------------------------------------------------------------------------------------------------


def test_each_job_has_its_turn_at_most_every_two_minutes_and_only_gsubs_jobs(site: RunningSite) -> None:
    site.start_job(82, uid=1001)
    site.add(running_job(83))
    for _ in range(9):
        site.clock.sleep(15)
        site.run()
    seen = [[read.run.attempt.job_id for read in reads] for _, reads in site.reads]
    assert seen == [[81, 82], [81, 82]]


def test_the_next_look_begins_where_the_last_one_ended(site: RunningSite) -> None:
    site.look(rows(1, 1), rows(2, 1))
    begins = [reads[0].run.output_begins for _, reads in site.reads]
    assert begins == [{}, {"/o": [len(rows(1, 1)), "m"]}]


def test_more_jobs_than_fit_in_one_pass_are_looked_at_in_turn(tmp_path: Path) -> None:
    site = RunningSite(tmp_path, replace(ADVISE, early=replace(ADVISE.early, jobs=2)))
    for number in range(81, 86):
        site.start_job(number)
    for _ in range(3):
        site.clock.sleep(15)
        site.run()
    assert [len(reads) for _, reads in site.reads] == [2, 2, 1]


def test_looks_that_take_more_than_their_share_of_cpu_time_wait(site: RunningSite) -> None:
    site.cost_s = 6.0
    site.look(times=10)
    # 1 s at first and 1 % of 1200 s pay for two looks of 6 s.
    assert len(site.reads) == 2


def test_output_that_was_not_read_in_time_shows_nothing(site: RunningSite) -> None:
    site.count_step(100)
    site.look(rows(1, 50))
    site.unread.add(81)
    site.look(times=60)
    assert site.found() == {}


def test_idle_gpus_are_found_even_if_the_output_cannot_be_read(site: RunningSite) -> None:
    site.unread.add(81)
    for _ in range(9):
        site.use_gpus(0.0, processes=(0, 0))
        site.look()
    assert set(site.found()) == {IDLE}
    site.use_gpus(50.0, minutes=3)
    site.look()
    assert site.found()[IDLE].gone_at is not None


def test_another_process_goes_on_with_what_is_stored(site: RunningSite) -> None:
    site.look(rows(1, 50), rows(51, 5, "nan"), rows(56, 5, "nan"))
    before = site.found()[DIVERGED]
    site.state = ReconcilerState()
    site.look(rows(61, 9, "nan"))
    assert site.found()[DIVERGED] == before and site.comment()
    site.look(*(rows(70 + 9 * n, 9) for n in range(16)))
    assert site.found()[DIVERGED].gone_at is not None and not site.comment()


# --- mode act ---------------------------------------------------------------------------------------------------------


def test_text_alone_never_ends_a_job(tmp_path: Path) -> None:
    site = make_acting(tmp_path)
    site.look(rows(1, 50), *(rows(51 + 9 * n, 9, "nan") for n in range(20)))
    assert site.found()[DIVERGED].action == "" and site.verbs() == []


def test_a_diverged_job_is_cancelled_if_its_counter_shows_it_too(tmp_path: Path) -> None:
    site = make_acting(tmp_path)
    site.count_step(100)
    site.look(rows(1, 50))
    for count in (200, 300):
        site.count_step(count)
        site.steps[81]["bad_losses"] = 90
        site.look(rows(count, 9, "nan"))
    assert site.found()[DIVERGED].action == "cancel" and site.verbs() == ["cancel"]
    site.run()
    assert "it was cancelled" in site.attempt(running_job(81)).decision_reason


def test_a_job_that_lost_a_rank_is_requeued_with_the_other_steps_of_a_retry(tmp_path: Path) -> None:
    site = make_acting(tmp_path)
    lose_rank(site)
    site.look(times=3)
    assert site.found()[PARTLY_DEAD].action == "requeue"
    assert site.verbs()[0] == "requeuehold"
    site.run()
    assert site.verbs() == ["requeuehold", "release", "update job"]
    assert site.slurm.records[81].restarts == 1
    run = site.attempt(running_job(81))
    assert run.reconciled and "partly dead" in run.decision_reason and "retry 1 of 3" in run.decision_reason


def test_the_retry_budget_limits_requeues(tmp_path: Path) -> None:
    site = make_acting(tmp_path, retry=Retry(backoff_s=0, per_root_cause=1))
    lose_rank(site)
    site.look(times=3)
    site.run()
    again = site.slurm.records[81]
    site.slurm.records[81] = replace(
        again, state="RUNNING", start_time=int(site.clock.now()), reason="None", nodes=("n1",)
    )
    site.steps.clear()
    lose_rank(site)
    site.look(times=3)
    assert [one.action for one in site.store.early_findings()] == ["requeue", ""]
    assert site.slurm.records[81].restarts == 1


@pytest.mark.parametrize(("changes", "told"), [({"requeue": False}, {}), ({}, {"retry": False})])
def test_without_consent_nothing_is_done(tmp_path: Path, changes: dict[str, object], told: dict[str, object]) -> None:
    site = RunningSite(tmp_path, ACT)
    site.add(running_job(81, **changes))
    site.spool_observations(submission_observation(submission(81, at=START - 1.0, **told)))
    lose_rank(site)
    site.look(times=3)
    assert site.found()[PARTLY_DEAD].action == "" and site.verbs() == []


def test_a_requeue_that_slurm_refuses_leaves_no_step_open(tmp_path: Path) -> None:
    site = make_acting(tmp_path)

    def refuse(action: SlurmAction, owner: int | None = None, also: object = ()) -> None:
        raise SlurmError("Requested operation is presently disabled")

    site.slurm.apply = refuse  # type: ignore[method-assign]
    lose_rank(site)
    site.look(times=3)
    assert site.found()[PARTLY_DEAD].action == ""
    assert site.store.actions(unfinished=True) == ()


def test_a_failed_run_is_retried_although_a_comment_was_set_while_it_ran(tmp_path: Path) -> None:
    site = make_acting(tmp_path, rules=ACT.rules | {"retry": "act"})
    site.look(rows(1, 50), rows(51, 5, "nan"), rows(56, 5, "nan"))
    assert site.comment()
    failed = replace(site.slurm.records[81], state="FAILED", exit_code=1, end_time=int(site.clock.now()))
    site.slurm.records[81] = failed
    site.logs.texts[81] = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    site.run()
    assert site.attempt(failed).decision == "retry" and "requeuehold" in site.verbs()


def play_until_requeued(path: Path, fuse: Fuse) -> RunningSite:
    """The job loses a rank; the reconciler is killed where `fuse` says, and another process goes on."""
    site = make_acting(path)
    plain = site.services

    def services(through: Callable[[object], object] = fuse.through) -> Services:
        return plain(through)

    lose_rank(site)
    site.services = services  # type: ignore[method-assign]
    new = ""
    for _ in range(8):
        try:
            site.look(new)
            new = ""
        except Killed:
            site.state = ReconcilerState()
            # Another process reads the output again from its start.
            new = rows(1, 100) + "srun: error: n1: task 1: Exited with exit code 1\n"
    return site


def test_a_reconciler_that_is_killed_while_it_acts_requeues_once_and_leaves_nothing_held(tmp_path: Path) -> None:
    fuse = Fuse()
    play_until_requeued(tmp_path / "whole", fuse)
    points = fuse.after_each_change()
    assert len(points) > 10
    for number, (at, after) in enumerate(points):
        site = play_until_requeued(tmp_path / str(number), Fuse(at, after=after))
        assert site.verbs().count("requeuehold") == 1, (at, site.verbs())
        assert "release" in site.verbs()
        found = site.slurm.records[81]
        assert (found.restarts, found.pending, found.reason) == (1, True, "None")
        assert site.store.actions(unfinished=True) == ()


def test_a_users_own_reconciler_does_the_same_for_their_jobs(tmp_path: Path) -> None:
    site = RunningSite(tmp_path, ADVISE, Scope(user="alice", uid=1001, trusted=frozenset()))
    site.start_job()
    site.add(running_job(82, user="bob", uid=1002))
    site.look(rows(1, 50), rows(51, 5, "nan"), rows(56, 5, "nan"))
    assert set(site.found()) == {DIVERGED} and site.comment().startswith("slurmwrap: diverged")
    assert {reads[0].run.attempt.job_id for _, reads in site.reads} == {81}
