"""Running jobs that are stopped at what their user named: after a checkpoint, in the user's name, once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import START, job
from test_limit_pending import HOUR, Site
from test_reconcile_pass import hooks, submission, submission_observation

from slurmwrap.config.load_config import RULES, Config
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import CountedLosses, LossPoint
from slurmwrap.reconcile import PassSummary, Scope, reconcile_once

QUIET = Config(rules=dict.fromkeys(RULES, "observe"))
STOP_AT = "plateau:0.1%/20%"


class StopSite(Site):
    """A site with job 81, which makes a step a second, settles after an hour, and writes a checkpoint every 1000 s."""

    nan_from = math.inf
    saves = True
    total = 40_000

    def losses(self, run: JobRun, directory: str) -> CountedLosses | None:
        if not directory:
            return None
        now = self.clock.now() - START
        steps = [now * (i + 1) / 200 for i in range(200)]
        bad = int(max(0.0, now - self.nan_from))
        points = tuple(
            LossPoint(at_s=step, step=step, loss=2 + 3 * math.exp(-step / 900))
            for step in steps
            if step < self.nan_from
        )
        return CountedLosses(points=points, taken=int(now), bad=bad, bad_at_end=bad)

    def run(self) -> PassSummary:
        done = self.clock.now() - START
        rows = [f"Saved checkpoint at step {step}" for step in range(1000, int(done), 1000) if self.saves]
        self.logs.texts[81] = "\n".join((*rows, f"step {int(done)}/{self.total} loss 2.0\n"))
        return reconcile_once(replace(self.services(), losses=self.losses), self.state)

    def play(self, until_s: float = 40_000) -> float | None:
        """Make a pass every minute; return when the first change was requested, in seconds after the start."""
        while (done := self.clock.now() - START) < until_s:
            self.run()
            if self.slurm.calls:
                return done
            self.clock.sleep(60)
        return None


def running_job(**changes: object) -> JobRecord:
    plain = job(
        81, state="RUNNING", reason="None", exit_code=0, submit_time=START, eligible_time=START, start_time=START,
        end_time=None, time_limit_s=24 * HOUR,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def site_of(path: Path, *, scope: Scope | None = None, changes: dict[str, Any] | None = None, **asked: Any) -> StopSite:
    site = StopSite(path, QUIET, scope)
    site.add(running_job(**(changes or {})))
    record = submission(81, at=START - 1.0, step_dir="/steps", **{"stop_at": STOP_AT, **asked})
    site.spool_observations(submission_observation(record))
    return site


def requests(site: StopSite) -> list[tuple[Verb, str, str, str, int | None]]:
    calls = zip(site.slurm.calls, site.slurm.owners, strict=True)
    return [(one.verb, one.target, one.key, one.value, owner) for one, owner in calls]


def test_a_job_on_a_plateau_is_cancelled_after_its_next_checkpoint(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    at = site.play()
    # A fifth of 40,000 steps after the loss settled, and the checkpoint that follows.
    assert at is not None and 2 * 8000 < at < 2 * 8000 + 1000 + 180
    assert requests(site) == [(Verb.CANCEL, "81", "", "", 1001)]
    (action,) = site.store.actions()
    assert (action.rule, action.mode, action.error, action.done_at is not None) == ("stop", "act", "", True)
    assert action.reason.startswith(f"stopped at your --stop-at={STOP_AT}: its loss fell by ")
    for _ in range(5):
        site.clock.sleep(60)
        site.run()
    assert len(site.slurm.calls) == 1


@pytest.mark.parametrize(
    ("signal", "request_"),
    [
        ("B:USR1@300", (Verb.SIGNAL, "81", "USR1", "batch", 1001)),
        ("TERM@120", (Verb.SIGNAL, "81", "TERM", "", 1001)),
        ("nonsense;", (Verb.CANCEL, "81", "", "", 1001)),
    ],
)
def test_a_job_with_a_signal_gets_it_once(
    tmp_path: Path, signal: str, request_: tuple[Verb, str, str, str, int]
) -> None:
    site = site_of(tmp_path, stop_signal=signal)
    assert site.play() is not None
    assert requests(site) == [request_]
    site.state.stops.clear()  # the reconciler starts again
    for _ in range(40):
        site.clock.sleep(60)
        site.run()
    assert len(site.slurm.calls) == 1


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, {"stop_at": ""}),
        ({}, {"stop_at": "plateau:1;scancel"}),
        ({}, {"stop_at": "", "stop_when": "diverged"}),
        ({}, {"step_dir": ""}),
        ({"uid": 1002, "user": "bob"}, {}),  # the submission is of another user's job
        ({"het_job_id": 81}, {}),
    ],
)
def test_jobs_that_go_on(tmp_path: Path, changes: dict[str, Any], asked: dict[str, Any]) -> None:
    site = StopSite(tmp_path, QUIET)
    site.add(running_job(**changes))
    told = {"step_dir": "/steps", "stop_at": STOP_AT, **asked}
    site.spool_observations(submission_observation(submission(81, at=START - 1.0, **told)))
    assert site.play(25_000) is None
    assert site.store.actions() == ()


def test_a_submission_that_is_reported_late_counts(tmp_path: Path) -> None:
    site = StopSite(tmp_path, QUIET)
    site.add(running_job())
    site.run()
    site.spool_observations(submission_observation(submission(81, at=START - 1.0, step_dir="/steps", stop_at=STOP_AT)))
    site.clock.sleep(60)
    assert site.play() is not None


def test_without_a_checkpoint_a_job_goes_on(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.saves = False
    assert site.play(30_000) is None


def test_without_the_number_of_steps_the_time_limit_counts(tmp_path: Path) -> None:
    site = site_of(tmp_path, changes={"time_limit_s": 20 * HOUR})
    site.total = 0
    at = site.play()
    assert at is not None and 2 * 0.2 * 20 * HOUR < at < 2 * 0.2 * 20 * HOUR + 1200


@pytest.mark.parametrize("saves", [True, False])
def test_a_diverged_job_is_stopped_at_once(tmp_path: Path, saves: bool) -> None:
    site = site_of(tmp_path, stop_when="diverged")
    site.nan_from, site.saves = 5000.0, saves
    at = site.play()
    assert at is not None and 5000 < at < 5000 + 180
    assert "NaN" in site.store.actions()[0].reason


def test_a_diverged_job_without_that_wish_goes_on(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.nan_from = 1000.0
    assert site.play(4000) is None


def test_a_users_own_reconciler_stops_their_job(tmp_path: Path) -> None:
    site = site_of(tmp_path, scope=Scope(user="alice"))
    assert site.play() is not None
    assert requests(site)[0][0] is Verb.CANCEL


def test_a_stopped_job_is_not_retried(tmp_path: Path) -> None:
    act = replace(QUIET, rules=QUIET.rules | {"retry": "act", "retry_elsewhere": "act"})
    site = site_of(tmp_path, stop_signal="TERM@60", retry=True)
    site.config = act
    assert site.play() is not None
    ended = replace(
        site.slurm.records[81], state="FAILED", reason="NonZeroExitCode", exit_code=143, end_time=int(site.clock.now())
    )
    site.add(ended)
    site.spool_observations(
        *hooks(ended, log="torch.distributed.DistBackendError: NCCL error: unhandled system error\n")
    )
    site.clock.sleep(30)
    site.run()
    (run,) = [one for one in site.store.attempts() if one.diagnosis]
    assert run.decision == "none" and run.decision_reason.startswith("stopped at your --stop-at")
    assert [one.verb for one in site.slurm.calls] == [Verb.SIGNAL]


@pytest.mark.parametrize(("later_s", "cancelled"), [(60, True), (7200, False)])
def test_a_job_that_its_program_requeues_at_the_signal_is_cancelled(
    tmp_path: Path, later_s: int, cancelled: bool
) -> None:
    site = site_of(tmp_path, stop_signal="USR1@90")
    assert site.play() is not None
    site.clock.sleep(later_s)
    now = int(site.clock.now())
    waiting = replace(
        site.slurm.records[81], state="PENDING", reason="BeginTime", restarts=1, submit_time=now,
        eligible_time=now + 120, start_time=None, nodes=(),
    )  # fmt: skip
    site.add(waiting)
    site.run()
    assert [one.verb for one in site.slurm.calls[1:]] == [Verb.CANCEL] * cancelled


@pytest.mark.parametrize("error", [SlurmError("Access denied"), SlurmUnreachable("no answer within 3 s")])
def test_a_refusal_is_recorded_and_an_unreachable_slurm_is_asked_again(tmp_path: Path, error: SlurmError) -> None:
    site = site_of(tmp_path)
    tried: list[float] = []

    def refuse(action: SlurmAction, owner: int | None = None, also: object = ()) -> None:
        tried.append(site.clock.now())
        raise error

    site.slurm.apply = refuse  # type: ignore[method-assign]
    site.play(26_000)
    errors = [action.error for action in site.store.actions()]
    if isinstance(error, SlurmUnreachable):
        assert len(tried) > 1 and errors == [""]
    else:
        assert len(tried) == 1 and errors == ["Access denied"]


def test_a_killed_reconciler_stops_the_job_after_its_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(tmp_path)
    apply: Callable[..., None] = site.slurm.apply

    def die(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(site.slurm, "apply", die)
    with pytest.raises(KeyboardInterrupt):
        site.play()
    monkeypatch.setattr(site.slurm, "apply", apply)
    site.state = type(site.state)()
    site.clock.sleep(60)
    assert site.play() is not None
    assert len(site.slurm.calls) == 1
    assert [action.done_at is not None for action in site.store.actions()] == [True] * len(site.store.actions())
