"""What the study takes for granted, in words, with the figures of its settings. Pure."""

from __future__ import annotations

from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.failure_settings import FailureSettings


def list_assumptions(settings: FailureSettings, source: str, *, waits_known: bool = False) -> tuple[str, ...]:
    """Sentences; the ones that no one measured first. `waits_known`: how long each job of the dump waited."""
    own = _of_dump(settings) if source == "dump" else _of_draw(settings)
    return (*own, *_of_both(settings, source, waits_known))


def _of_draw(s: FailureSettings) -> tuple[str, ...]:
    blind = (
        "as often as Philly's jobs repeated each cause (trials per job, table 7), drawn geometrically"
        if s.blind_retries is None
        else f"{s.blind_retries} times"
    )
    return (
        "No public trace holds status, user and retries of the same jobs: which job fails of what is drawn.",
        "Every class of GPU demand fails equally often (table 7 has more failed multi-GPU jobs than Philly's public "
        "trace has multi-GPU jobs); which cause it is follows the class.",
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


def _of_dump(s: FailureSettings) -> tuple[str, ...]:
    return (
        "State and run time of each failed job are the dump's; a dump holds no logs, so the cause of a FAILED job is "
        "drawn from Philly's table 7 by its GPUs and its run time.",
        "Each line is one run: what a user submitted again has a line of its own, so nothing is retried where nobody "
        "retried it.",
        f"A line of the same user, job name and shape as one that had failed within "
        f"{_format_hours(s.same_fault_s)} before is "
        "that job submitted again; while slurmwrap runs the job again, and where that ended well, he does not submit "
        "it. What was submitted again otherwise than so is not recognised.",
        "What the taxonomy answers with another run, that cures in the end: a FAILED job of such a cause fails again "
        "as often as Philly's did (trials per job, table 7), one that lost its node does not. Memory is raised until "
        "it is enough.",
        "A job that Slurm requeued by itself is not run again by us: the dump has that run. One that nothing cures "
        "stays failed, as it was.",
        "Intervals hold what nobody knows of the causes (each draw is one account of them) and how much the days of "
        "the dump differ; not how far the rates published for other clusters are from this one's.",
        "The dump names no node at fault: a NODE_FAIL falls on a made-up lemon with a chance of "
        f"{s.lemons_cause:.0%} (Kokolis et al.).",
        "Jobs that ran into their time limit are given no more time: nobody knows whether they would resume.",
    )


def _of_both(s: FailureSettings, source: str, waits_known: bool) -> tuple[str, ...]:
    kept = (
        "nothing is kept" if s.checkpoint_s is None else f"a checkpoint every {_format_hours(s.checkpoint_s)} is kept"
    )
    logs = sum(count for count, _ in published_rates.CLASSIFIED)
    return (
        "Every job is gsub's and its user agreed to retries; every rule of slurmwrap acts, with the budgets that are "
        "configured but for the brake on retries per hour.",
        f"Of runs that another one can cure, {kept}; what cannot work starts anew each time.",
        f"A pre-run takes one GPU for {s.trial_s / 60:g} min, or until the job fails or ends before. "
        f"{_one_gpu(s, waits_known)} {_describe_passed(s, source)}",
        f"Of the faults that a single rank meets in that time the pre-run stops {s.sees:.1%} (measured: "
        f"{published_rates.MUTANTS_STOPPED} of {published_rates.MUTANTS_MET} mutants), "
        f"of multi-GPU jobs {s.needs_company:.0%} fewer; "
        f"it stops {s.false_fails:.1%} of the sound jobs (measured: none in 60 scripts).",
        f"Our own read finds {s.own_read:.0%} of the wrong inputs missing or broken; else a second run elsewhere must "
        "confirm it.",
        f"The classifier misreads {s.misread:.1%} of the logs (measured at first sight on {logs}).",
        f"A job that ran out of host memory needs 1 to {s.oom_most:g} times what it had; a larger one costs nobody "
        "anything.",
        *(() if source == "dump" else (_describe_stopped(s),)),
        "GPU time only: no queue is played.",
    )


def _one_gpu(s: FailureSettings, waits_known: bool) -> str:
    if waits_known:
        return f"One-GPU jobs that waited no longer than {s.at_once_s:g} s are their own pre-run."
    return f"{s.one_gpu_waits:.0%} of the one-GPU jobs find no free GPU and get one, the others are their own pre-run."


def _describe_passed(s: FailureSettings, source: str) -> str:
    """What production does not pre-run again. Traces without users and names do not tell who comes again."""
    if source == "dump":
        return (
            "An array has one. Of the jobs whose user had one of the same name and shape pre-run before, and it "
            f"passed, {s.reuse:.0%} are the same to the letter and need none."
        )
    return f"{s.passed_before:.0%} of the jobs need none, for their fingerprint passed before."


def _describe_stopped(s: FailureSettings) -> str:
    if s.comes_back:
        return (
            f"Who was stopped although another run would have helped comes back after {_format_hours(s.hand_delay_s)}."
        )
    return "Who was stopped does not come back: of a false stop all GPU time is lost, with what its checkpoint holds."


def _format_hours(seconds: float) -> str:
    return f"{seconds / 3600:g} h"
