"""--time-min of jobs that resume from checkpoints: set while they wait, kept for their runs, and always undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, Killed, MemoryLimits
from test_limit_pending import ACT, DAY, HOUR, ChangeFuse, Site, pending_job, requests
from test_limit_running import running_job, write_log
from test_reconcile_pass import submission, submission_observation

from slurmwrap.errors import SlurmUnreachable
from slurmwrap.model.cluster import Partition, Reservation, Snapshot
from slurmwrap.model.decision import SlurmAction
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.lowered_limit import TimeRequest
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.policy.checkpoint_limit import choose_time_min
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.profiling.job_key import derive_site_key
from slurmwrap.reconcile import pending_job_updates, reconcile_once
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.reconcile.restore_limits import restore_all_limits
from slurmwrap.sbatch.job_request import ResourceShape

USER_S = 24 * HOUR
# Its earlier run saved 50 minutes after its start, so that it certainly saves within 70.
SAVED_S, SET = 3000.0, "70"
COMMENT = "slurmwrap: time limit 1:10:00 to 1-00:00:00: it resumes from checkpoints"
SET_REQUESTS = [("81", "TimeMin", SET), ("81", "Comment", COMMENT)]
UNDONE = [("81", "TimeLimit", "1440"), ("81", "TimeMin", "0"), ("81", "Comment", "")]


def site_of(
    path: Path, *, saved_s: float | None = SAVED_S, changes: dict[str, object] | None = None, **told: object
) -> Site:
    """A site with job 81, which resumed once before and waits again."""
    site = Site(path)
    site.add(replace(pending_job(time_limit_s=USER_S, restarts=2), **(changes or {})))  # type: ignore[arg-type]
    plain = replace(submission(81, at=START - 5000.0, time=TimeRequest(), retry=True), profile_key="train.py")
    site.spool_observations(submission_observation(replace(plain, **told)))  # type: ignore[arg-type]
    site.store.save_attempt(earlier_run(1, saved_s))
    return site


def earlier_run(restarts: int, saved_s: float | None, submit_time: int = START - 4000) -> JobRun:
    ran = pending_job(time_limit_s=USER_S, restarts=restarts, submit_time=submit_time, start_time=submit_time)
    return replace(record_of(ran, "lab"), state="TIMEOUT", reconciled=True, saved_after_s=saved_s)


def run_passes(site: Site, number: int = 2) -> None:
    for _ in range(number):
        site.run()
        site.clock.sleep(15)


def start(site: Site, limit_s: int) -> None:
    """Start job 81 as backfill does it in a gap."""
    site.slurm.start(81)
    site.slurm.records[81] = replace(site.slurm.records[81], time_limit_s=limit_s)


def requeue(site: Site) -> None:
    """Requeue job 81 as Slurm does it: the limit of its last run stays."""
    old, now = site.slurm.records[81], int(site.clock.now())
    site.slurm.records[81] = replace(
        old, state="PENDING", reason="Priority", restarts=old.restarts + 1, submit_time=now, eligible_time=now,
        start_time=None, end_time=None, nodes=(), priority=99,
    )  # fmt: skip


def test_the_shortest_start_allows_for_a_save_with_a_margin_and_is_worth_it() -> None:
    assert choose_time_min([], DAY) is None
    assert choose_time_min([100.0, 60.0], DAY) == 1800
    assert choose_time_min([3000.0, 100.0], DAY) == 4200
    assert choose_time_min([3000.0], 8400) is None


def test_a_waiting_job_that_resumes_may_start_in_a_gap_in_which_it_saves(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    run_passes(site)
    assert requests(site) == SET_REQUESTS and site.slurm.owners == [1001, 1001]
    rows = [(a.rule, a.mode, a.key, a.value, a.error) for a in site.store.actions()]
    assert rows[0] == ("limit", "act", "TimeMin", SET, "")
    start(site, 70 * 60)
    run_passes(site)
    assert requests(site) == SET_REQUESTS, "the limit with which Slurm started it stays"


def test_a_time_min_that_the_rate_limit_held_back_is_set_in_a_later_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(tmp_path)
    with monkeypatch.context() as held:
        held.setattr(pending_job_updates, "take_tokens", lambda count, this_pass: False)
        run_passes(site)
        assert requests(site) == []
    run_passes(site)
    assert requests(site) == SET_REQUESTS and len(site.limits.read()) == 1


def test_a_requeued_job_gets_its_users_limit_again_once(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    run_passes(site)
    start(site, 80 * 60)
    run_passes(site)
    requeue(site)
    site.store.save_attempt(earlier_run(2, SAVED_S, START - 60))
    run_passes(site)
    assert requests(site)[2:] == [("81", "TimeLimit", "1440")]
    # From now on another limit is the decision of its user.
    before = len(requests(site))
    site.slurm.records[81] = replace(site.slurm.records[81], time_limit_s=5 * HOUR)
    run_passes(site)
    assert requests(site)[before:] == []


def test_a_job_that_did_not_save_in_a_short_run_gets_no_time_min_any_more(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    run_passes(site)
    start(site, 70 * 60)
    requeue(site)
    site.store.save_attempt(earlier_run(2, None, START - 60))
    run_passes(site, 3)
    assert ("81", "TimeMin", "0") in requests(site) and site.limits.read() == ()
    assert requests(site).count(("81", "TimeMin", SET)) == 1


@pytest.mark.parametrize("state", ["pending", "running", "requeued"])
def test_everything_is_undone_if_the_rule_is_switched_off(tmp_path: Path, state: str) -> None:
    site = site_of(tmp_path)
    run_passes(site)
    if state != "pending":
        start(site, 70 * 60)
        run_passes(site)
    site.config = replace(ACT, rules={"limit": "advise"})
    run_passes(site)
    if state == "requeued":
        requeue(site)
        site.clock.sleep(700)
        run_passes(site)
    assert site.limit == USER_S
    assert (("81", "TimeMin", "0") in requests(site)) == (state != "running"), "Slurm keeps that of a running job"
    site.clock.sleep(700)
    run_passes(site)
    before = len(requests(site))
    run_passes(site)
    assert requests(site)[before:] == [] and bool(site.limits.read()) == (state == "running")


@pytest.mark.parametrize("started", [False, True])
def test_the_watchdog_and_a_service_that_stops_undo_it(tmp_path: Path, started: bool) -> None:
    site = site_of(tmp_path)
    run_passes(site)
    if started:
        start(site, 70 * 60)
    done, errors = restore_all_limits(site.slurm, site.limits.read())
    assert site.limit == USER_S and errors == []
    assert done == ["job 81 has its time limit of 1440 minutes again"]
    assert requests(site)[2:] == [one for one in UNDONE if not (started and one[1] == "TimeMin")]


def test_what_was_asked_of_slurm_is_remembered_wherever_the_reconciler_is_killed(tmp_path: Path) -> None:
    set_in = 0
    for at in range(1, 40):
        site = site_of(tmp_path / str(at))
        fuse = ChangeFuse(at, after=bool(at % 2))
        try:
            reconcile_once(site.services(fuse.through), ReconcilerState())
        except Killed:
            pass
        else:
            break
        if site.slurm.calls:
            set_in += 1
            assert site.limits.read()
            restore_all_limits(site.slurm, site.limits.read())
            assert ("81", "TimeMin", "0") in requests(site)
    assert set_in


@pytest.mark.parametrize(
    ("saved_s", "changes", "told"),
    [
        (None, {}, {}),
        (SAVED_S, {}, {"retry": False}),
        (SAVED_S, {"requeue": False}, {}),
        (SAVED_S, {}, {"time": TimeRequest(fixed="--time-min")}),
        (SAVED_S, {}, {"time": TimeRequest(fixed="--deadline")}),
        (SAVED_S, {}, {"time": TimeRequest(warn_s=60)}),
        (SAVED_S, {}, {"time": None}),
        (SAVED_S, {"array_job_id": 80, "array_task_id": 1}, {"job_id": 80}),
        (40000.0, {}, {}),
    ],
)
def test_jobs_that_get_no_time_min(
    tmp_path: Path, saved_s: float | None, changes: dict[str, object], told: dict[str, object]
) -> None:
    site = site_of(tmp_path, saved_s=saved_s, changes=changes, **told)
    run_passes(site)
    assert requests(site) == [] and site.limits.read() == ()


def test_no_job_gets_one_that_would_reach_into_a_reservation_with_its_own_limit(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    maint = Reservation(name="maint", start=START + HOUR, end=START + 2 * DAY, nodes=("n3",))
    nodes = site.slurm.snapshot().nodes
    site.slurm.snapshot = lambda: Snapshot(  # type: ignore[method-assign]
        taken_at=site.clock.now(), nodes=nodes, partitions=(Partition(name="gpu"),), reservations=(maint,)
    )
    run_passes(site)
    assert requests(site) == []


def test_other_modes_and_a_missing_watchdog_record_it_once(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.watched = False
    run_passes(site, 3)
    assert requests(site) == []
    assert [(a.mode, a.key, a.value) for a in site.store.actions()] == [("advise", "TimeMin", SET)]


@pytest.mark.parametrize("by_watchdog", [False, True])
def test_a_job_that_was_moved_gets_no_more_than_its_partition_allows(tmp_path: Path, by_watchdog: bool) -> None:
    site = site_of(tmp_path)
    run_passes(site)
    start(site, 70 * 60)
    site.slurm.records[81] = replace(site.slurm.records[81], partition="short")
    plain, short = site.slurm.snapshot(), Partition(name="short", max_time_s=2 * HOUR)
    site.slurm.snapshot = lambda: replace(plain, partitions=(short,))  # type: ignore[method-assign]
    if by_watchdog:
        restore_all_limits(site.slurm, site.limits.read())
    else:
        site.config = replace(ACT, rules={"limit": "advise"})
        run_passes(site)
    assert site.limit == 2 * HOUR


def test_a_waiting_job_is_restored_in_its_owners_name_and_a_stopped_scontrol_delays_nothing(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    run_passes(site)
    apply, asked = site.slurm.apply, list[int | None]()

    def time_out(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        asked.append(owner)
        raise SlurmUnreachable("no answer within 3 s")

    site.slurm.apply = time_out  # type: ignore[method-assign]
    done, errors = restore_all_limits(site.slurm, site.limits.read())
    assert (done, asked) == ([], [1001]) and "no answer" in errors[0]
    site.config = replace(ACT, rules={"limit": "advise"})
    assert "no answer" in site.run().errors[0] and site.run().errors == []
    site.slurm.apply = apply  # type: ignore[method-assign]
    site.clock.sleep(700)
    run_passes(site, 1)
    assert requests(site)[2:] == UNDONE and site.slurm.owners[2:] == [1001] * 3


@pytest.mark.parametrize("started", [False, True])
def test_it_is_undone_although_the_file_was_lost(tmp_path: Path, started: bool) -> None:
    site = site_of(tmp_path)
    run_passes(site)
    if started:
        start(site, 70 * 60)
        run_passes(site)
    site.limits, site.state = MemoryLimits(), ReconcilerState()
    site.config = replace(ACT, rules={"limit": "observe"})
    run_passes(site, 1)
    assert site.limit == USER_S and ((("81", "TimeMin", "0") in requests(site)) is not started)


def test_a_job_with_a_shorter_limit_is_requeued_with_its_users_limit(tmp_path: Path) -> None:
    site = site_of(tmp_path, shape=ResourceShape(nodes=1, gpus=2, gpus_per_node=2, time_limit_s=USER_S))
    site.config = replace(ACT, rules={"limit": "act", "resize": "act", "retry": "act"})
    run_passes(site)
    start(site, 70 * 60)
    run_passes(site)
    site.logs.texts[81] = write_log(4200)
    site.clock.sleep(70 * 60)
    site.slurm.end_jobs(lambda one: 1e9)
    run_passes(site, 3)
    assert (site.slurm.records[81].state, site.limit) == ("PENDING", USER_S)


def test_the_time_until_the_first_checkpoint_is_stored_while_the_job_runs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add(running_job())
    plain = submission(81, at=START - 1.0, time=TimeRequest(), retry=True)
    site.spool_observations(submission_observation(replace(plain, profile_key="train.py")))
    key = derive_site_key(1001, "train.py")
    site.store.save_profile(ResourceProfile(key=key, saved_after_s=100.0))
    for _ in range(100):
        site.clock.sleep(60)
        site.logs.texts[81] = write_log(site.clock.now() - START)
        site.run()
    [run] = site.store.attempts(cluster="lab", job_id=81)
    # It saves after 5000 s, which its output shows with the step that follows.
    assert run.saved_after_s is not None and 5000 <= run.saved_after_s <= 5000 + 120
    profile = site.store.profile(key)
    assert profile is not None and profile.saved_after_s == run.saved_after_s
