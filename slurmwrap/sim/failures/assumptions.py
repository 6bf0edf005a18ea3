"""FailureSettings, all rates and assumptions of the failure study, and the assumptions as text. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slurmwrap.config.load_config import Prerun
from slurmwrap.prerun import expected_saving
from slurmwrap.sim.failures import published_rates

# Categories of which some late failures are in code that a shortened epoch executes: its end, validation, checkpoint,
# next epoch and final test. The late failures of the others depend on time, data or the machine.
REHEARSED = frozenset({"semantic_error", "syntax_error", "import_error", "permission_error", "traceback_from_crash"})


# Every rate and every assumption of the failure study in one place.
#
# No public trace of training jobs contains status, user and retries together. What is published is taken from
# published_rates.py. What is not published is marked `assumed` here, and the study repeats it next to its figures.
@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSettings:
    """Settings of the failure study. Shares are 0..1, times in seconds. ValueError for impossible values."""

    # What goes wrong.
    failing_jobs: float = published_rates.FAILING_JOBS
    # Jobs that their users ended.
    killed_jobs: float = published_rates.KILLED_JOBS
    # Share of GPU time; long jobs are killed more often, until this share is met.
    killed_gpu_time: float = published_rates.KILLED_GPU_TIME
    # Of "no signature": chains of automatic retries that ended well (2605.09370).
    unexplained_curable: float = 1 / 3
    # Assumed: a job out of memory needs 1 to this many times what it had, log-uniform.
    oom_most: float = 4.0
    # Assumed: a user's next failure of one cause within a day is because of the same file.
    same_fault: float = 0.25
    same_fault_s: float = 86_400.0  # assumed
    node_failures_per_day: float = published_rates.NODE_FAILURES_PER_DAY
    lemon_share: tuple[float, float] = published_rates.LEMON_SHARE
    lemons_cause: float = published_rates.LEMONS_CAUSE  # share of all node failures
    # Assumed: seconds between checkpoints, from which runs resume that a retry can cure; None: such runs start anew.
    checkpoint_s: float | None = 3600.0
    # The plain arms.
    blind_retries: int | None = None
    requeue_s: float = 120.0  # Slurm's own delay of a requeued job
    hand_retries: int = 1  # assumed: how often a user resubmits unchanged what cannot work
    hand_delay_s: float = 7200.0  # assumed: until the user notices and resubmits
    # Of slurmwrap. Assumed: three steps and what comes before them; a trial ends after this time.
    trial_s: float = 180.0
    sees: float = (
        published_rates.compute_seen_share()
    )  # of what one GPU meets within the trial; measured at first sight (docs/prerun-rounds.md)
    # A pre-run continues for this time with a shortened epoch (prerun.rehearse_s); 0: it ends after its steps.
    rehearsal_s: float = 120.0
    # Share of the late failures of REHEARSED whose code a shortened epoch executes, and of these the share that is
    # stopped; see published_rates.LATE_THREADS and LATE_ROUNDS.
    rehearsed: float = published_rates.compute_rehearsed_share()
    sees_late: float = published_rates.compute_late_seen_share()
    # Assumed: of the wrong inputs that slurmwrap's own read finds (own_read), the share that is among the inputs known
    # from the pre-run, and is read while the job waits (prerun.inputs). A job that starts at once has no such time.
    inputs_checked: float = 0.8
    # Whether the inputs of every job are read, and a broken one stops it while it runs. slurmwrap does not do that.
    checks_every_job: bool = False
    # Assumed: the factor by which a time limit exceeds the run time is log-uniform between these. It is what the
    # expected value of a pre-run knows of a job's run time, if the trace has no time limits.
    limit_factors: tuple[float, float] = expected_saving.LIMIT_FACTORS
    # Assumed: share of the multi-GPU jobs' faults that one rank does not meet.
    needs_company: float = expected_saving.NEEDS_COMPANY
    false_fails: float = published_rates.compute_false_fail_share()  # of sound jobs; the same rounds
    # Assumed: share of one-GPU jobs that find no free GPU; the others are their own pre-run.
    one_gpu_waits: float = 0.5
    # Assumed: share of jobs whose fingerprint passed before, so that they need no trial.
    passed_before: float = 0.0
    # Assumed: of the jobs whose user had one of the same name and shape pre-run before, and it passed, the share whose
    # script, code and arguments are the same, too. Tasks of one array always are, and have one pre-run.
    reuse: float = 0.5
    # A one-GPU job of a dump that waited no longer could start at once (two rounds of backfill).
    at_once_s: float = 60.0
    misread: float = (
        published_rates.compute_misread_share()
    )  # of log-based diagnoses; measured at first sight (docs/diagnosis-rounds.md)
    # Of these, the share with the right decision nevertheless; measured on the same logs.
    misread_harmless: float = published_rates.compute_harmless_share()
    # Assumed: share of wrong inputs that slurmwrap's own read finds missing or broken, too, so that no second run must
    # confirm it. Of the labelled logs of this category in slurmwrap's tests about as many report a missing or a
    # truncated file.
    own_read: float = 0.5
    # Whether users of falsely stopped jobs submit them again by hand; False: all of such a job is lost.
    comes_back: bool = False
    # Greatest number of runs of one job, in any arm: a bound of the simulation.
    max_runs: int = 50

    def __post_init__(self) -> None:
        shares = ("failing_jobs", "killed_jobs", "killed_gpu_time", "unexplained_curable", "same_fault")
        for name in (
            *shares,
            "lemons_cause",
            "sees",
            "sees_late",
            "needs_company",
            "false_fails",
            "passed_before",
            "misread",
            "own_read",
            "one_gpu_waits",
            "rehearsed",
            "sees_late",
            "inputs_checked",
            "misread_harmless",
            "reuse",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        if not 0 <= self.lemon_share[0] <= self.lemon_share[1] <= 1:
            raise ValueError(f"lemon_share must be two shares, the lower one first, not {self.lemon_share}")
        if self.failing_jobs + self.killed_jobs > 1:
            raise ValueError("failing_jobs and killed_jobs add up to more than all jobs")
        for name in (
            "trial_s",
            "rehearsal_s",
            "requeue_s",
            "hand_delay_s",
            "node_failures_per_day",
            "same_fault_s",
            "at_once_s",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if not 1 <= self.limit_factors[0] <= self.limit_factors[1]:
            raise ValueError(
                f"limit_factors must be two factors of at least 1, the lower one first, not {self.limit_factors}"
            )
        if self.oom_most < 1 or self.max_runs < 1:
            raise ValueError("oom_most and max_runs must be at least 1")
        if self.checkpoint_s is not None and self.checkpoint_s <= 0:
            raise ValueError(f"checkpoint_s must be positive or None, not {self.checkpoint_s}")


def list_assumptions(
    settings: FailureSettings, source: str, *, waits_known: bool = False, prerun: Prerun | None = None
) -> tuple[str, ...]:
    """Return the assumptions as sentences, those that were not measured first.

    `waits_known`: whether it is known how long each job of the dump waited. `prerun`: what selects the jobs that have a
    pre-run; None: the defaults.
    """
    own = _list_dump_assumptions(settings) if source == "dump" else _list_draw_assumptions(settings)
    return (*own, *_list_common_assumptions(settings, source, waits_known, prerun or Prerun()))


def _list_draw_assumptions(s: FailureSettings) -> tuple[str, ...]:
    blind = (
        "as often as Philly's jobs repeated each cause (trials per job, table 7), drawn geometrically"
        if s.blind_retries is None
        else f"{s.blind_retries} times"
    )
    return (
        "No public trace holds status, user and retries of the same jobs: which job fails of what is drawn.",
        "Every class of GPU demand fails equally often (table 7 has more failed multi-GPU jobs than Philly's public "
        "trace has multi-GPU jobs); the cause is drawn by the class.",
        "Run times to failure are log-interpolated between table 7's p50, p90 and p95, alike for all GPU demands.",
        f"The plain world runs a failed job again whatever the reason, {blind}.",
        f"By hand: a user runs again after {_format_hours(s.hand_delay_s)}, and submits what cannot work "
        f"{s.hand_retries} more time{'s' * (s.hand_retries != 1)}.",
        f"A user's next wrong input within {_format_hours(s.same_fault_s)} is the very same file with a chance of "
        f"{s.same_fault:.0%}.",
        f"Nodes fail {1000 * s.node_failures_per_day:.2f} times in 1,000 node-days; {s.lemons_cause:.0%} of that falls "
        f"on lemons, {s.lemon_share[0]:.1%} to {s.lemon_share[1]:.1%} of the nodes (Kokolis et al.: failures of large "
        "jobs went from 14 % to 4 % without them). They stay lemons, in service, for the whole trace. Failures are "
        "independent: no incident strikes many jobs at once.",
    )


def _list_dump_assumptions(s: FailureSettings) -> tuple[str, ...]:
    return (
        "State and run time of each failed job are the dump's; a dump holds no logs, so the cause of a FAILED job is "
        "drawn from Philly's table 7 by its GPUs and its run time.",
        "Each line is one run: what a user submitted again has a line of its own, so only runs that were retried count "
        "as retries.",
        f"A line of the same user, job name and shape as one that had failed within "
        f"{_format_hours(s.same_fault_s)} before is "
        "that job submitted again; while slurmwrap runs the job again, and if that ended well, the user does not "
        "submit it. Other resubmissions are not recognised.",
        "If the taxonomy answers a cause with another run, the job is cured in the end: a FAILED job of such a cause "
        "fails again as often as Philly's did (trials per job, table 7), one that lost its node does not. Memory is "
        "raised until it is enough.",
        "slurmwrap does not run a job again that Slurm requeued by itself: the dump contains that run. A job that "
        "nothing cures stays failed.",
        "Intervals cover what is unknown of the causes (each draw is one account of them) and how much the days of "
        "the dump differ; not how far the rates published for other clusters are from this one's.",
        "The dump names no node at fault: a NODE_FAIL falls on an invented lemon with a chance of "
        f"{s.lemons_cause:.0%} (Kokolis et al.).",
        "Jobs that ran into their time limit are given no more time: it is not known whether they would resume.",
    )


def _list_common_assumptions(s: FailureSettings, source: str, waits_known: bool, prerun: Prerun) -> tuple[str, ...]:
    kept = (
        "nothing is kept" if s.checkpoint_s is None else f"a checkpoint every {_format_hours(s.checkpoint_s)} is kept"
    )
    logs = sum(count for count, _, _ in published_rates.CLASSIFIED)
    bugs = sum(one.visible for one in published_rates.PRERUN_ROUNDS)
    sound = sum(one.sound for one in (*published_rates.PRERUN_ROUNDS, *published_rates.LATE_ROUNDS))
    return (
        "Every job was submitted with gsub and its user agreed to retries; every rule of slurmwrap acts, with the "
        "configured budgets except for the limit on retries per hour.",
        f"Of runs that another one can cure, {kept}; what cannot work starts anew each time.",
        f"A pre-run takes one GPU for {(s.trial_s + s.rehearsal_s) / 60:g} min, or until the job fails or ends before: "
        f"{s.trial_s / 60:g} min for its steps{_describe_rehearsal(s)}.",
        f"{_describe_selection(s, prerun, waits_known)} {_describe_passed(s, source)}",
        f"Of the faults that a single rank meets in that time the pre-run stops {s.sees:.1%} (measured at first sight "
        f"on {bugs} seeded bugs in public scripts), of multi-GPU jobs {s.needs_company:.0%} fewer; "
        f"it stops {s.false_fails:.1%} of the sound jobs (measured at first sight on {sound}; the causes were fixed).",
        *_list_late_assumptions(s),
        f"slurmwrap's own read finds {s.own_read:.0%} of the wrong inputs missing or broken; else a second run "
        "elsewhere must confirm it.",
        f"The classifier misreads {s.misread:.1%} of the logs (measured at first sight on {logs}); "
        f"{s.misread_harmless:.0%} "
        "of these readings lead to the right decision nevertheless (measured on the same logs).",
        f"A job that ran out of host memory needs 1 to {s.oom_most:g} times what it had; a larger request "
        "costs other jobs nothing.",
        *(() if source == "dump" else (_describe_stopped(s),)),
        "GPU time only: no queue is played.",
    )


def _describe_rehearsal(s: FailureSettings) -> str:
    return f" and {s.rehearsal_s / 60:g} min for a shortened epoch" if s.rehearsal_s else ""


def _list_late_assumptions(s: FailureSettings) -> tuple[str, ...]:
    """Return what is assumed about failures after the steps of the pre-run."""
    threads, rounds = published_rates.LATE_THREADS, published_rates.LATE_ROUNDS
    low, high = published_rates.compute_rehearsed_interval()
    known = threads.rehearsed + threads.other
    bugs = sum(one.visible for one in rounds)
    source = f"measured at first sight on {bugs} late bugs" if rounds else "assumed, until it is measured"
    late = (
        f"Of the late semantic, syntax, import and permission errors and tracebacks a shortened epoch executes "
        f"{s.rehearsed:.0%} ({threads.rehearsed} of {known} public threads about late Python errors; "
        f"{low:.0%} to {high:.0%}; {threads.unclear} more do not show it), and "
        f"{s.sees_late:.1%} of these are stopped ({source}). Late crashes, memory, CUDA and MPI errors need the time "
        "or the data of the real run.",
    )
    return (
        *(late if s.rehearsal_s else ()),
        f"Of the wrong inputs that slurmwrap's own read finds, {s.inputs_checked:.0%} are known from the pre-run and "
        "read before the job starts, if it has to wait; otherwise none.",
    )


def _describe_selection(s: FailureSettings, prerun: Prerun, waits_known: bool) -> str:
    """Return which jobs have a pre-run."""
    least = f"with {prerun.min_gpus} GPUs or more " if prerun.min_gpus > 1 else ""
    if prerun.select == "all":
        chosen = f"Every job {least}has a pre-run."
    else:
        low, high = s.limit_factors
        chosen = (
            f"A job {least}has a pre-run if production's estimate expects that it saves more GPU time than it costs. "
            f"The estimate knows the time limit, which is {low:g} to {high:g} times the run time (log-uniform) where "
            "the trace has none, and no history of the user."
        )
    waits = (
        f"Jobs that waited no longer than {s.at_once_s:g} s could start at once"
        if waits_known
        else f"{1 - s.one_gpu_waits:.0%} of the jobs could start at once"
    )
    return f"{chosen} {waits}; with one GPU they are their own pre-run."


def _describe_passed(s: FailureSettings, source: str) -> str:
    """Return which jobs get no pre-run in production. Traces without users and names do not show resubmissions."""
    if source == "dump":
        return (
            "An array has one. Of the jobs whose user had one of the same name and shape pre-run before, and it "
            f"passed, {s.reuse:.0%} are exactly the same and need none."
        )
    return f"{s.passed_before:.0%} of the jobs need none, because their fingerprint passed before."


def _describe_stopped(s: FailureSettings) -> str:
    if s.comes_back:
        return (
            "A user whose job was stopped although another run would have helped submits it again after "
            f"{_format_hours(s.hand_delay_s)}."
        )
    return (
        "A user whose job was stopped does not submit it again: a false stop loses all GPU time of the job, including "
        "its checkpoint."
    )


def _format_hours(seconds: float) -> str:
    return f"{seconds / 3600:g} h"
