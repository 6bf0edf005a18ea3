"""Running jobs that resume from checkpoints, and the end of their time limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, job
from test_limit_pending import HOUR, Site
from test_reconcile_pass import submission, submission_observation

from slurmwrap.config.load_config import RULES, Config, Limit
from slurmwrap.errors import SlurmUnreachable
from slurmwrap.model.cluster import Partition, Reservation, Snapshot
from slurmwrap.model.decision import SlurmAction
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.lowered_limit import TimeRequest

ACT = Config(rules=dict.fromkeys(RULES, "observe") | {"limit": "act"})
LIMIT_S, EVERY_S = 24 * HOUR, 5000


def running_job(**changes: object) -> JobRecord:
    plain = job(
        81, state="RUNNING", reason="None", exit_code=0, restarts=1, submit_time=START, eligible_time=START,
        start_time=START, end_time=None, time_limit_s=LIMIT_S,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def write_log(elapsed_s: float, total: int = 1_000_000) -> str:
    """The output of a run that resumed at step 5000, makes a step per second, and saves every EVERY_S steps."""
    rows = ["Resuming training from checkpoint checkpoint-5000"]
    for step in range(0, int(elapsed_s), 1000):
        if step and step % EVERY_S == 0:
            rows.append(f"Saved checkpoint at step {5000 + step}")
        rows.append(f"step {5000 + step}/{total} loss 1.5")
    return "\n".join((*rows, f"step {5000 + int(elapsed_s)}/{total} loss 1.5\n"))


def play(site: Site, log: Callable[[float], str] = write_log, needs_s: float = 1e9) -> JobRecord:
    """Run the job to its end, with a pass every minute in its last hours."""
    site.clock.sleep(18 * HOUR)
    while site.slurm.records[81].state == "RUNNING":
        site.logs.texts[81] = log(site.clock.now() - START)
        site.run()
        site.clock.sleep(60)
        site.slurm.end_jobs(lambda one: needs_s)
    return site.slurm.records[81]


def site_of(path: Path, config: Config = ACT, *, changes: dict[str, object] | None = None, **told: object) -> Site:
    site = Site(path, config)
    site.add(running_job(**(changes or {})))
    plain = submission(81, at=START - 1.0, time=TimeRequest())
    site.spool_observations(submission_observation(replace(plain, **told)))  # type: ignore[arg-type]
    return site


def limits_set(site: Site) -> list[tuple[str, str, int | None]]:
    return [
        (action.key, action.value, owner) for action, owner in zip(site.slurm.calls, site.slurm.owners, strict=True)
    ]


def test_a_job_ends_right_after_the_last_checkpoint_that_fits(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    ended = play(site)
    last = LIMIT_S // EVERY_S * EVERY_S
    lasted = (ended.end_time or 0) - START
    assert last < lasted < last + 180 < LIMIT_S
    assert limits_set(site) == [("TimeLimit", str(lasted // 60), 1001)]
    assert [(a.rule, a.mode, a.error) for a in site.store.actions()] == [("limit", "act", "")]


def test_a_job_is_extended_once_to_its_next_checkpoint_if_the_site_allows_it(tmp_path: Path) -> None:
    site = site_of(tmp_path, replace(ACT, limit=Limit(extend_s=3 * HOUR)))
    ended = play(site)
    following = (LIMIT_S // EVERY_S + 1) * EVERY_S
    assert following < (ended.end_time or 0) - START < following + 180
    # Only an administrator may extend it; then it ends in its owner's name.
    assert [owner for _, _, owner in limits_set(site)] == [None, 1001]


@pytest.mark.parametrize(
    "snapshot",
    [
        {"partitions": (Partition(name="gpu", max_time_s=LIMIT_S),)},
        {"reservations": (Reservation(name="m", start=START + LIMIT_S, end=START + 9 * LIMIT_S, nodes=("n1",)),)},
    ],
)
def test_no_job_is_extended_beyond_its_partitions_limit_or_into_a_reservation(
    tmp_path: Path, snapshot: dict[str, object]
) -> None:
    site = site_of(tmp_path, replace(ACT, limit=Limit(extend_s=3 * HOUR)))
    site.slurm.snapshot = lambda: Snapshot(taken_at=site.clock.now(), nodes=(), **snapshot)  # type: ignore[method-assign, arg-type]
    assert (play(site).end_time or 0) - START < LIMIT_S


def never_resumes(elapsed_s: float) -> str:
    return write_log(elapsed_s).partition("\n")[2].replace("step 5000/", "step 0/")


def test_a_job_that_finishes_before_its_limit_is_not_ended(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    needs_s = LIMIT_S - 600
    assert play(site, lambda elapsed_s: write_log(elapsed_s, total=5000 + needs_s), needs_s).state == "COMPLETED"
    assert site.slurm.calls == []


@pytest.mark.parametrize(
    ("changes", "told", "log"),
    [
        ({}, {"retry": False}, write_log),
        ({}, {"time": None}, write_log),
        ({}, {"time": TimeRequest(warn_s=300)}, write_log),  # its program saves when it gets the signal
        ({}, {"time": TimeRequest(fixed="--deadline")}, write_log),
        ({"restarts": 0}, {}, write_log),
        ({"requeue": False}, {}, write_log),
        ({}, {}, never_resumes),
        ({}, {}, lambda elapsed_s: ""),
    ],
)
def test_jobs_that_keep_their_limit(
    tmp_path: Path, changes: dict[str, object], told: dict[str, object], log: Callable[[float], str]
) -> None:
    site = site_of(tmp_path, changes=changes, **told)
    assert (play(site, log).end_time or 0) - START == LIMIT_S and site.slurm.calls == []


def test_in_mode_advise_it_is_recorded_once(tmp_path: Path) -> None:
    site = site_of(tmp_path, replace(ACT, rules=ACT.rules | {"limit": "advise"}))
    assert (play(site).end_time or 0) - START == LIMIT_S
    assert [(a.mode, a.key) for a in site.store.actions()] == [("advise", "TimeLimit")]


def test_a_user_in_whose_name_slurm_does_not_answer_delays_no_pass(tmp_path: Path) -> None:
    site = site_of(tmp_path)

    def time_out(action: SlurmAction, owner: int | None = None, also: object = ()) -> None:
        raise SlurmUnreachable("no answer within 3 s")

    site.slurm.apply = time_out  # type: ignore[method-assign]
    assert (play(site).end_time or 0) - START == LIMIT_S
