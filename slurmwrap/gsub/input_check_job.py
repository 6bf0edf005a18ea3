"""The program of the job that reads input files: find them, check them, and stop the real job for a broken one.

templates/prerun/inputs.sh starts it on the node: `python -I -m slurmwrap.gsub.input_check_job TRIAL_DIR`. It runs as
the user, next to nothing else: whatever happens to it, the real job starts as if it had never been.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.config import load_config as configuration
from slurmwrap.console import Console
from slurmwrap.errors import SlurmError
from slurmwrap.escape import comment
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.gsub.apply_verdict import find_waiting_job
from slurmwrap.gsub.input_check import RESULT, SAME_ARGUMENTS
from slurmwrap.gsub.prerun_job import (
    JobGone,
    Judged,
    PrerunFiles,
    RealJobWatcher,
    apply_and_publish,
    is_kept_from_starting,
    make_held_job,
)
from slurmwrap.gsub.submit import open_submit_context
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.code_fingerprint import read_code_files
from slurmwrap.prerun.inputs.check_files import CheckSummary, FileChecker, FileFault, RateLimiter, format_fault
from slurmwrap.prerun.inputs.expand_inputs import expand_inputs
from slurmwrap.prerun.inputs.library_readers import LibraryReaders
from slurmwrap.prerun.inputs.opened_files import OpenedFiles, read_opened_files
from slurmwrap.prerun.inputs.tolerant_code import find_tolerant_code
from slurmwrap.prerun.static.job_inputs import digest
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.atomic_write import replace_file
from slurmwrap.store.job_notices import News, leave_notice
from slurmwrap.store.sound_files import SoundFiles

_WATCH_S = 10.0
# Seconds kept before the end of this Slurm job.
_MARGIN_S = 30.0
_FIX = (
    "replace the file, and submit the job again; if the program is meant to go on after broken files: "
    "SLURMWRAP_PRERUN_INPUTS=off gsub ..."
)


@dataclass(slots=True)
class _InputCheck:
    """One check: the trial whose files it reads, and what is known about the real job."""

    trial: PrerunFiles
    context: SubmitContext
    console: Console
    opened: OpenedFiles
    stop: threading.Event
    # Why the real job is no longer pending; "" while it is.
    gone: str = ""
    # Whether a fault was acted upon.
    acted: bool = False


def main(argv: list[str] | None = None) -> int:
    """Run the check. Return 0 also when files are broken: the exit code says only whether slurmwrap worked."""
    directory = Path((sys.argv[1:] if argv is None else argv)[0])
    console = Console.of_terminal("slurmwrap")
    try:
        return _run_input_check(directory, console)
    except Exception as error:
        console.fault(error)
        return 1


def _run_input_check(directory: Path, console: Console) -> int:
    began = time.monotonic()
    trial = PrerunFiles.read(directory)
    spec = trial.spec
    context = open_submit_context(configuration.load(), os.environ, console)
    settings, state_dir = context.config.prerun, str(configuration.find_user_state_dir(os.environ))
    opened = read_opened_files(spec.trial_dir, leave_out=(spec.trial_dir, state_dir))
    check = _InputCheck(trial, context, console, opened, threading.Event())
    watcher = RealJobWatcher(spec.real_job, SlurmCommands(timeout_s=5, environ=os.environ))
    _look(check, watcher, settings.inputs)
    if check.stop.is_set():
        console.say(f"nothing is read: {check.gone}")
        return 0
    inputs = expand_inputs(opened, spec.inputs, _list_words(trial), spec.chdir)
    console.say(f"{len(inputs)} files are checked for job {spec.real_job}")
    known = SoundFiles(state_dir)
    checker = FileChecker(
        known=known,
        limiter=RateLimiter(settings.inputs_mib_s * float(1 << 20), check.stop),
        readers=LibraryReaders(opened.pythons),
        report=lambda fault: _note_fault(fault, check),
    )
    done = threading.Event()
    until = _compute_end(began, settings.inputs_limit_s)
    threading.Thread(target=_watch, args=(check, watcher, settings.inputs, done, until), daemon=True).start()
    try:
        todo = checker.check_structures(inputs)
        _act(checker.summary.faults, check)
        if not check.acted:
            checker.report = lambda fault: _note_and_act(fault, check)
            checker.check_contents(todo)
    finally:
        done.set()
        known.flush()
        checker.readers.close()
    _write_result(checker.summary, check, time.monotonic() - began)
    return 0


def _list_words(trial: PrerunFiles) -> Sequence[str]:
    text = trial.spec.command or trial.request.script.content.decode("utf-8", "replace")
    return (*trial.spec.args, *re.findall(r"[^\s'\"]+", text))


def _compute_end(began: float, limit_s: float) -> float:
    """Return when the check must end, by time.monotonic()."""
    with suppress(KeyError, ValueError):
        return time.monotonic() + float(os.environ["SLURM_JOB_END_TIME"]) - time.time() - _MARGIN_S
    return began + limit_s - _MARGIN_S


def _look(check: _InputCheck, watcher: RealJobWatcher, mode: str) -> None:
    """Ask whether the real job still waits. With `auto` the check ends when it does not; with `all` if it is gone."""
    if check.gone:
        return
    try:
        watcher.look()
    except JobGone as why:
        check.gone = str(why)
        if mode != "all" or not why.started:
            check.stop.set()


def _watch(check: _InputCheck, watcher: RealJobWatcher, mode: str, done: threading.Event, until: float) -> None:
    while not done.wait(min(_WATCH_S, max(0.1, until - time.monotonic()))) and not check.stop.is_set():
        _look(check, watcher, mode)
        if time.monotonic() >= until:
            check.stop.set()


def _note_fault(fault: FileFault, check: _InputCheck) -> None:
    doubt = "" if fault.certain else "; some programs read it nevertheless"
    check.console.say(f"{format_fault(fault, check.trial.spec.chdir)} ({fault.why}{doubt})")


def _note_and_act(fault: FileFault, check: _InputCheck) -> None:
    _note_fault(fault, check)
    _act([fault], check)


def _act(faults: Sequence[FileFault], check: _InputCheck) -> None:
    """Cancel the pending job for a certain fault, or only report it where the job may not need the file as it is."""
    certain = [fault for fault in faults if fault.certain]
    if not certain or check.acted:
        return
    check.acted = True
    verdict = make_broken_input_verdict(certain, check.trial.spec.chdir)
    reason_not = _find_reason_not_to_cancel(check)
    if reason_not:
        check.console.say(f"the job is not cancelled: {reason_not}")
        _report_only(f"{verdict.reason} ({reason_not})", check)
        return
    for trial in (check.trial, *_list_jobs_with_same_arguments(check)):
        apply_and_publish(make_held_job(trial), trial.directory, Judged(verdict), check.context, check.console)
    # The rest of the content is not read: no job waits for it any more.
    check.stop.set()


def _find_reason_not_to_cancel(check: _InputCheck) -> str:
    spec = check.trial.spec
    if check.gone:
        return check.gone
    if find_waiting_job(int(spec.real_job or 0), check.context, check.trial.job) is None:
        return "a part of it has started"
    if spec.delay or is_kept_from_starting(str(spec.real_job)):
        return "it cannot start yet, and other jobs may write the file before"
    search = next((python.environ.get("PYTHONPATH", "") for python in reversed(check.opened.pythons)), "")
    script = check.trial.request.script.content.decode("utf-8", "surrogateescape")
    code = read_code_files(script, spec.chdir, spec.args, {**os.environ, "PYTHONPATH": search})
    if place := find_tolerant_code({path: text for path, text in code.items() if path.endswith(".py")}):
        return f"the program seems to go on after a broken file: {place.removeprefix(spec.chdir.rstrip('/') + '/')}"
    return ""


def make_broken_input_verdict(faults: Sequence[FileFault], chdir: str) -> Verdict:
    """Return the verdict for broken input files; the first one is blamed."""
    first = faults[0]
    others = f", and {len(faults) - 1} more broken {'files' if len(faults) > 2 else 'file'}" if len(faults) > 1 else ""
    try:
        identity = digest(first.path)
    except OSError:
        identity = ""
    findings = tuple(
        Finding(
            severity=Severity.ERROR,
            message=format_fault(fault, chdir),
            fix=_FIX if fault is first else "",
            category="incorrect_inputs",
        )
        for fault in faults
    )
    return Verdict(
        outcome=Outcome.FAIL,
        layer="inputs",
        reason=f"broken input file: {format_fault(first, chdir)}{others}",
        category="incorrect_inputs",
        findings=findings,
        input_path=first.path,
        input_fault=first.text,
        input_digest=identity,
    )


def _list_jobs_with_same_arguments(check: _InputCheck) -> list[PrerunFiles]:
    """Return the other jobs with this script and these arguments that waited for the same pre-run."""
    found = []
    with suppress(OSError):
        for line in (check.trial.directory / SAME_ARGUMENTS).read_text(encoding="utf-8").splitlines():
            with suppress(OSError, ValueError, TypeError, KeyError):
                found.append(PrerunFiles.read(Path(line)))
    return found


def _report_only(reason: str, check: _InputCheck) -> None:
    """Write the reason into the job's Comment, and leave it for the next gsub call."""
    job = check.trial.spec.real_job
    if job is None:
        return
    try:
        record = check.context.slurm.job(job)
        text = comment(f"slurmwrap: {reason}", record.comment if record is not None else "")
        why = "the user sees it in squeue and scontrol"
        check.context.slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=job, key="Comment", value=text, reason=why))
    except SlurmError as error:
        check.console.say(f"the job's Comment is not set: {error}")
    news = News(
        job_id=int(job), name=check.trial.request.job_name, reason=reason, at=check.context.clock.now(), cancelled=False
    )
    with suppress(OSError):
        leave_notice(str(configuration.find_user_state_dir(os.environ)), news)


def _write_result(summary: CheckSummary, check: _InputCheck, seconds: float) -> None:
    plain = {**asdict(summary), "seconds": round(seconds, 3), "job_state": check.gone or "pending"}
    with suppress(OSError):
        replace_file(check.trial.directory / RESULT, json.dumps(plain))
    rate = summary.bytes / max(seconds, 0.001) / (1 << 20)
    ended = "" if summary.complete else f"; not all: {check.gone or ('stopped' if check.acted else 'out of time')}"
    check.console.say(
        f"{summary.files} files: {summary.read} read and sound ({summary.bytes >> 20} MiB, {rate:.0f} MiB/s), "
        f"{summary.known} known from before, {len(summary.faults)} broken{ended}"
    )


if __name__ == "__main__":
    sys.exit(main())
