"""FailureSettings: every rate and every assumption of the failure study in one place. Record only.

No public trace of training jobs holds status, user and retries together. What is published is taken from
published_rates.py; what no one published is marked `assumed` here, and the study repeats it next to its figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurmwrap.sim.failures import published_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSettings:
    """Shares are 0..1, times seconds. ValueError for what cannot be."""

    # what goes wrong
    failing_jobs: float = published_rates.FAILING_JOBS  # fail at least once; table 7
    killed_jobs: float = published_rates.KILLED_JOBS  # ended by their users
    killed_gpu_time: float = published_rates.KILLED_GPU_TIME  # long jobs are killed more often, until this share is met
    unexplained_curable: float = 1 / 3  # of "no signature": chains of automatic retries that ended well (2605.09370)
    oom_most: float = 4.0  # assumed: a job out of memory needs 1 to so many times what it had, log-uniform
    same_fault: float = 0.25  # assumed: a user's next failure of one cause within a day is of the very same file
    same_fault_s: float = 86_400.0  # assumed
    node_failures_per_day: float = published_rates.NODE_FAILURES_PER_DAY
    lemon_share: tuple[float, float] = published_rates.LEMON_SHARE
    lemons_cause: float = published_rates.LEMONS_CAUSE  # of all node failures
    checkpoint_s: float | None = 3600.0  # assumed: runs that a retry can cure go on from here; None: from their start
    # the plain worlds
    blind_retries: int | None = None  # a fixed number; None: as often as Philly's jobs repeated each cause
    requeue_s: float = 120.0  # Slurm's own delay of a requeued job
    hand_retries: int = 1  # assumed: a user submits unchanged what cannot work
    hand_delay_s: float = 7200.0  # assumed: until they notice and do
    # slurmwrap
    trial_s: float = 180.0  # assumed: three steps and what comes before them; a trial ends there
    sees: float = (
        published_rates.compute_seen_share()
    )  # of what one GPU meets within the trial; docs/prerun-reference.md, mutants
    needs_company: float = 0.2  # assumed: of the multi-GPU jobs' faults, those that one rank does not meet
    false_fails: float = 0.0  # of sound jobs; none in 60 scripts (docs/prerun-reference.md)
    one_gpu_waits: float = 0.5  # assumed: one-GPU jobs that find no free GPU; the others are their own pre-run
    passed_before: float = 0.0  # assumed: jobs whose fingerprint passed before, so that they need no trial
    # assumed: of the jobs whose user had one of the same name and shape pre-run before, and it passed, those whose
    # script, code and arguments are the same, too. Tasks of one array always are, and have one pre-run.
    reuse: float = 0.5
    at_once_s: float = 60.0  # a one-GPU job of a dump that waited no longer could start now (two rounds of backfill)
    misread: float = (
        published_rates.misread_share()
    )  # of log-based diagnoses; measured at first sight (docs/diagnosis.md)
    # assumed: wrong inputs that our own read finds missing or broken, too, so that no second run must confirm it. Of
    # the labelled logs of this category in our tests about as many speak of a missing or a truncated file.
    own_read: float = 0.5
    comes_back: bool = False  # anyone who was stopped falsely submits again by hand; False: all of their job is lost
    max_runs: int = 50  # of one job, in any arm: the simulation's own bound

    def __post_init__(self) -> None:
        shares = ("failing_jobs", "killed_jobs", "killed_gpu_time", "unexplained_curable", "same_fault")
        for name in (
            *shares,
            "lemons_cause",
            "sees",
            "needs_company",
            "false_fails",
            "passed_before",
            "misread",
            "own_read",
            "one_gpu_waits",
            "reuse",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        if not 0 <= self.lemon_share[0] <= self.lemon_share[1] <= 1:
            raise ValueError(f"lemon_share must be two shares, the lower one first, not {self.lemon_share}")
        if self.failing_jobs + self.killed_jobs > 1:
            raise ValueError("failing_jobs and killed_jobs add up to more than all jobs")
        for name in ("trial_s", "requeue_s", "hand_delay_s", "node_failures_per_day", "same_fault_s", "at_once_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.oom_most < 1 or self.max_runs < 1:
            raise ValueError("oom_most and max_runs must be at least 1")
        if self.checkpoint_s is not None and self.checkpoint_s <= 0:
            raise ValueError(f"checkpoint_s must be positive or None, not {self.checkpoint_s}")
