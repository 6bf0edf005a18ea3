"""Suggest what a researcher can do next: one sentence, and commands to paste. Pure.

Only the job or its script is named, never arguments or options, because they may contain secrets.
"""

from __future__ import annotations

import math
import posixpath
import shlex

from slurmwrap.diagnosis.taxonomy import COMPLETED_WITH_ERROR
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.decision import Verb
from slurmwrap.model.job_record import FINAL_STATES
from slurmwrap.model.job_run import WAITING_RULES, JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.policy.resize import compute_time_needed_s
from slurmwrap.policy.retry_decision import REQUEUED_ALREADY
from slurmwrap.policy.run_from_slurm import REQUEUED
from slurmwrap.report.action_counts import REQUEUES, format_scontrol_line
from slurmwrap.report.job_report.timeline import JobTimeline, failed, is_stopped_by_prerun, list_tasks
from slurmwrap.report.text_format import duration, format_slurm_time

_GIB = 1024
# Factor on the memory or time that was not enough.
_INCREASE = 1.5
# Factor on the most that was measured.
_MARGIN = 1.2
# Steps that a pre-run makes anyway (prerun.steps).
_DEFAULT_STEPS = 3
# Steps of a pre-run if it is not known how far the failure is.
_FALLBACK_STEPS = 100
_MAX_STEPS = 1_000_000
# A pre-run of more seconds than this is not a quick test.
_LONG_S = 4 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """A sentence, the command to try if there is one, and further commands that show more."""

    sentence: str
    command: str = ""
    also: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        """Return all commands."""
        return tuple(command for command in (self.command, *self.also) if command)


def find_next_step(timeline: JobTimeline) -> Next:
    """Return the one thing to try next.

    A failed pre-run that stopped the job comes first, then the question for a pre-run's own id, then the diagnosis of
    the last run, then Slurm's state.
    """
    last = find_last_run(timeline)
    if is_stopped_by_prerun(timeline):
        return _suggest_submit(
            timeline, "Fix what the pre-run found, test it on one GPU, then submit again.", "--prerun=only"
        )
    if (tried := _suggest_after_prerun(timeline)) is not None:
        return tried
    if last is not None and last.diagnosis is not None:
        return _suggest_after_run(timeline, last)
    if last is not None and last.state:
        return Next(sentence="It ended and is not judged yet; the reconciler does that within a minute.")
    if timeline.slurm_says.partition(" ")[0] in FINAL_STATES:
        return Next(sentence="It ended, and is not judged yet: `slurmwrap reconcile` does that.")
    return Next(sentence="It has not ended.", command=f"slurmwrap watch {shlex.quote(timeline.address)}")


def _suggest_after_prerun(timeline: JobTimeline) -> Next | None:
    """Answer for the id of a pre-run's own job, which has a verdict and so has ended; None for any other id."""
    own = [record for record in timeline.preruns if str(record.prerun_job_id) == timeline.address]
    if not own:
        return None
    real, outcome = own[-1].job_id, own[-1].verdict.outcome
    result = {Outcome.PASS: "passed", Outcome.FAIL: "failed"}.get(outcome, "proved nothing")
    if real is not None:
        return Next(sentence=f"This is the pre-run of job {real}, and it {result}.", command=f"slurmwrap why {real}")
    again = "" if outcome is not Outcome.PASS else " The job can be submitted."
    return Next(sentence=f"This is a pre-run without a job of its own, and it {result}.{again}")


def find_last_run(timeline: JobTimeline) -> JobRun | None:
    """Return the run that matters most: the last one; for an array, the newest failure among its tasks."""
    tasks = [run for run in list_tasks(timeline) if failed(run)]
    if tasks:
        return max(tasks, key=lambda run: (run.end_time or 0, run.attempt.submit_time))
    return timeline.attempts[-1] if timeline.attempts else None


def _suggest_after_run(timeline: JobTimeline, last: JobRun) -> Next:
    """Suggest by the diagnosis of the last run.

    In this order: the job was requeued or completed; slurmwrap already made it run again; an action was only advised;
    Slurm holds the job; the cause is an input, or memory or time; otherwise by the decision.
    """
    assert last.diagnosis is not None
    mine = [action for action in timeline.actions if action.attempt == last.attempt]
    if not failed(last) and last.state == REQUEUED:
        return _suggest_after_requeue(timeline, last)
    if not failed(last):
        return _suggest_for_completed(timeline, last)
    again = any(a.verb in _RERUN_VERBS and a.mode == "act" and not a.error for a in mine)
    if again or last.decision_reason.endswith(REQUEUED_ALREADY):
        watch = f"slurmwrap watch {shlex.quote(last.address)}"
        return Next(sentence="Nothing: it runs again by itself.", command=watch)
    advised = [a for a in mine if a.mode == "advise" and a.verb not in _VERBS_NOT_FOR_JOBS]
    advised = [a for a in advised if a.rule not in WAITING_RULES]
    if advised:
        return Next(
            sentence="It can be run again:", command=" && ".join(format_scontrol_line(action) for action in advised)
        )
    release = f"scontrol release {last.address}"
    # The job's launch failed, and Slurm holds it.
    if last.decision == "stop" and f"'{release}'" in last.decision_reason:
        return Next(sentence="Slurm holds it: let it start again, or cancel it.", command=release)
    return (
        _suggest_for_input(timeline, last) or _suggest_for_size(timeline, last) or _suggest_by_decision(timeline, last)
    )


def _suggest_after_requeue(timeline: JobTimeline, last: JobRun) -> Next:
    """Answer for a job whose last known run was requeued without a failure. `slurm_says` is about the next run."""
    if timeline.slurm_says.partition(" ")[0] in FINAL_STATES:
        return Next(sentence="The run after it ended, and is not judged yet (slurmwrap reconcile).")
    waits = f" Slurm says {timeline.slurm_says}." if timeline.slurm_says else ""
    watch = f"slurmwrap watch {shlex.quote(last.address or timeline.address)}"
    return Next(sentence=f"Nothing: it was requeued and runs again by itself.{waits}", command=watch)


# Verbs that make a job run again. A release alone follows a failed launch, after which Slurm requeued the job itself.
_RERUN_VERBS = {
    *REQUEUES,
    Verb.RELEASE.value,
}
_VERBS_NOT_FOR_JOBS = (Verb.DRAIN.value, Verb.RESUME.value, Verb.BLOCK_INPUT.value, Verb.MOVE.value)
# Environment variables that make the log of a category more informative; sbatch passes the environment to the job.
_DEBUG_VARIABLES = {
    "core_dump": "PYTHONFAULTHANDLER=1",
    "invalid_memory_access": "CUDA_LAUNCH_BLOCKING=1",
    "cuda_failure": "CUDA_LAUNCH_BLOCKING=1",
    "nccl_error": "NCCL_DEBUG=INFO",
}
_RETRIED = ("retry", "retry_elsewhere")


def _suggest_for_input(timeline: JobTimeline, last: JobRun) -> Next | None:
    if last.decision != "blacklist_input":
        return None
    path = last.diagnosis.input_path if last.diagnosis is not None else ""
    if last.decision_reason.endswith(": does not exist"):
        return _suggest_submit(timeline, "Put the file there, or correct its path; then submit again.")
    if not path:
        return _suggest_submit(timeline, "Find the file that it could not read, fix or replace it, then submit again.")
    sentence = "Fix or replace the file: a changed file is no longer blocked (--force submits it unchanged)."
    return replace(_suggest_submit(timeline, sentence), also=(f"slurmwrap inputs show {shlex.quote(path)}",))


def _suggest_for_size(timeline: JobTimeline, last: JobRun) -> Next | None:
    """Suggest more memory or time, in the unit of the request; None if that is not the cause, or not known."""
    category = last.diagnosis.category if last.diagnosis is not None else ""
    if category == "cpu_oom" and (option := suggest_memory(last)):
        return _suggest_submit(timeline, "Submit it again with more memory, or lower what it needs.", option)
    return (
        _suggest_for_time(timeline, last, last.time_limit_s) if category == "time_limit" and last.time_limit_s else None
    )


def _suggest_for_time(timeline: JobTimeline, last: JobRun, limit_s: int) -> Next:
    """Suggest the time that the job needs by its own progress, with a margin; otherwise half as much again."""
    left = last.diagnosis.remaining_s if last.diagnosis is not None else None
    wanted = float(compute_time_needed_s(last.run_s or limit_s, left)) if left is not None else limit_s * _INCREASE
    why = ""
    if left is not None:
        why = f"Its output says that {duration(left)} were left, of about {duration((last.run_s or limit_s) + left)}"
    cap = last.longest_s
    if cap is not None and wanted > cap:
        need = f"{why}: it needs about {duration(wanted)} in all, and" if why else "It needs more time, and"
        sentence = f"{need} its partition allows {duration(cap)}: write checkpoints, and continue in a chain of jobs."
        option = f"--dependency=singleton --time={format_slurm_time(cap)}"
        return _suggest_submit(timeline, f"{sentence} Submit this several times:", option)
    again = "it starts from its checkpoint only if the program resumes" if wanted > limit_s else ""
    sentence = f"{why}: submit it again with more time" if why else "Submit it again with more time"
    return _suggest_submit(
        timeline, f"{sentence}; {again}." if again else f"{sentence}.", f"--time={format_slurm_time(wanted)}"
    )


def _suggest_by_decision(timeline: JobTimeline, last: JobRun) -> Next:
    assert last.diagnosis is not None
    found = last.diagnosis
    if found.category == "no_signature":
        tried = _suggest_submit(
            timeline, "Read the end of its output; then fix it, and test it on one GPU.", "--prerun=only"
        )
        output = last.std_err or last.std_out
        return replace(tried, command=f"tail -n 60 {shlex.quote(output)}" if output else "", also=tried.commands)
    if last.decision == "stop" and found.decision in _RETRIED and found.domain != "U":
        away = f"--exclude={shlex.quote(found.node)} " if found.node else ""
        whose = "Often not" if found.domain == "AE" else "Not"
        sentence = f"{whose} the program's fault: submit it again; with --retry such a failure is run again by itself."
        return _suggest_submit(timeline, sentence, f"--retry {away}".strip(), _DEBUG_VARIABLES.get(found.category, ""))
    if last.decision == "stop" and found.category == "model_diverged":
        return _suggest_submit(timeline, "Change what diverges, then submit again.")
    if last.decision == "stop" and found.category == "storage_full":
        return _suggest_submit(timeline, "Make room where it writes, then submit again.")
    if last.decision == "stop" and (shows := _DEBUG_VARIABLES.get(found.category)):
        return _suggest_test(
            timeline, last, "Let it show on one GPU where it fails, fix that, then submit again.", shows
        )
    if last.decision == "stop":
        return _suggest_test(timeline, last, "Fix it, test it on one GPU, then submit again.")
    return _suggest_submit(timeline, found.advice or "Submit it again.")


def _suggest_for_completed(timeline: JobTimeline, last: JobRun) -> Next:
    found = last.diagnosis
    if found is None or found.category != COMPLETED_WITH_ERROR:
        cancelled = found is not None and found.category == "cancelled"
        return Next(sentence="Nothing: it was cancelled." if cancelled else "Nothing: it completed.")
    hides = "The script hid the program's exit code: begin it with `set -eo pipefail`, and end it without `|| true`."
    if found.error == "model_diverged":
        return _suggest_submit(
            timeline, "Change what diverges, and let the program stop at a loss of NaN; then submit again."
        )
    return _suggest_test(timeline, last, f"Fix the error, test it on one GPU, then submit again. {hides}")


def _suggest_test(timeline: JobTimeline, last: JobRun, sentence: str, variable: str = "") -> Next:
    """Suggest a pre-run that goes beyond the point of the failure, because one of a few steps would pass again."""
    steps, at = _find_steps_beyond(timeline, last)
    if not steps:
        return _suggest_submit(timeline, sentence, "--prerun=only", variable)
    if last.run_s > _LONG_S:
        far = f"It failed {at}: a pre-run that far takes as long; start one from a checkpoint near it."
        return _suggest_submit(timeline, f"{sentence} {far}", f"--prerun=only --prerun-steps {steps}", variable)
    sentence = f"{sentence} It failed {at}: this pre-run goes that far."
    return _suggest_submit(timeline, sentence, f"--prerun=only --prerun-steps {steps}", variable)


def _find_steps_beyond(timeline: JobTimeline, last: JobRun) -> tuple[int, str]:
    """Return (steps of a pre-run that would reach the failure, where it was, in words); (0, "") if a plain one may do.

    The steps follow from the step that the run reached, otherwise from its run time and the speed that its pre-run
    measured; if a pre-run passed and nothing else is known, _FALLBACK_STEPS.
    """
    found, measured = last.diagnosis, last.measurement
    step = measured.steps if measured is not None and measured.steps else found.step if found is not None else None
    if step is not None and step > _DEFAULT_STEPS:
        return _round_steps(step * _INCREASE), f"after step {step:,}"
    passed = [p.verdict for p in timeline.preruns if p.verdict.outcome is Outcome.PASS]
    if not passed or step is not None or last.run_s <= passed[-1].seconds:
        return 0, ""
    speed = passed[-1].measurement.steps_per_s if passed[-1].measurement is not None else None
    steps = _round_steps(last.run_s * speed * _INCREASE) if speed else _FALLBACK_STEPS
    return max(
        steps, _FALLBACK_STEPS
    ), f"after {duration(last.run_s)}, and the pre-run ended after {duration(passed[-1].seconds)}"


def _round_steps(steps: float) -> int:
    """Round up to two significant digits: 150, 1200."""
    unit = int(10 ** max(0, len(str(math.ceil(steps))) - 2))
    return min(_MAX_STEPS, math.ceil(steps / unit) * unit)


def suggest_memory(run: JobRun) -> str:
    """Return "--mem=96G": half as much again, or the measured peak with a margin; "" if nothing is known."""
    peak = run.measurement.mem_peak_mib if run.measurement is not None else None
    if run.mem_mib_per_cpu:
        return f"--mem-per-cpu={_format_gib(run.mem_mib_per_cpu * _INCREASE)}"
    wanted = max((run.mem_mib_per_node or 0) * _INCREASE, (peak or 0) * _MARGIN)
    return f"--mem={_format_gib(wanted)}" if run.mem_mib_per_node else ""


def _format_gib(mib: float) -> str:
    return f"{math.ceil(mib / _GIB)}G" if mib >= _GIB else f"{math.ceil(mib)}M"


def _suggest_submit(timeline: JobTimeline, sentence: str, option: str = "", variable: str = "") -> Next:
    """Return the sentence with a gsub command, after an environment variable for the job.

    The command repeats the call, where that is in the user's own records; else it names the script. Without a script
    file only the user can repeat the call then, because the site stores no arguments.
    """
    submission = timeline.submission
    if submission is None:
        return Next(sentence=sentence)
    if submission.call is not None:
        again = f"gsub --again {_find_repeated_job(timeline, submission)}"
        command = " ".join(word for word in (variable, again, option) if word)
        # After the test on one GPU, the job itself.
        return Next(sentence=sentence, command=command, also=(again,) if "--prerun=only" in option else ())
    if not submission.script_path:
        words = " ".join(word for word in (variable, "gsub", option, "…") if word)
        return Next(
            sentence=f"{sentence} It had no script file (--template, --wrap, a pipe): repeat that call, {words}"
        )
    script = posixpath.join(submission.work_dir, submission.script_path)
    words = " ".join(word for word in (variable, "gsub", option, shlex.quote(script)) if word)
    return Next(sentence=sentence, command=words)


def _find_repeated_job(timeline: JobTimeline, submission: Submission) -> str:
    """Return what --again takes: the array or task that was asked for, or the job of a pre-run."""
    head = timeline.address.partition("_")[0]
    return timeline.address if head == str(submission.job_id) else str(submission.job_id)
