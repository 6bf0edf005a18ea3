"""Derive a Verdict from a TrialResult: pass, fail, or inconclusive if one GPU cannot show it. Pure but for `inspect`.

A `fail` stops a job that its owner expects to work, so it is given only for an error that the real job would meet as
well. After any other failure the verdict is `inconclusive` and the job starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation, Diagnosis, Evidence, LogTail
from slurmwrap.model.trial_result import SIGNS, Rehearsal, TrialResult
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.static import job_inputs
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict import python_traceback
from slurmwrap.prerun.verdict.python_traceback import TRACEBACK, TracebackSummary, blame
from slurmwrap.prerun.verdict.shortened_run import describe_rehearsal, find_shortening_doubt
from slurmwrap.prerun.verdict.silent_exit import find_silent_exit
from slurmwrap.prerun.verdict.single_gpu_limits import Read
from slurmwrap.prerun.verdict.single_gpu_messages import ELSEWHERE, find_doubt

_PROVEN_BY_FILE = ("incorrect_inputs", "checkpoint_error", "traceback_from_crash", "semantic_error", "no_signature")


def judge(
    spec: TrialSpec,
    result: TrialResult,
    classify: Callable[[Evidence], Diagnosis],
    inspect: Callable[[str], str | None] = job_inputs.inspect,
    read: Read = python_traceback.read,
) -> Verdict:
    """Return the verdict of one trial.

    `classify` is diagnosis.classifier's classify. `inspect` reads a data file and returns what is wrong with it.
    `read` returns the text of a source file that a traceback names; its argument is the path as Python printed it,
    relative to the job's directory.
    """
    return replace(_decide(spec, result, classify, inspect, read), failed_commands=result.failed_commands)


def _decide(
    spec: TrialSpec,
    result: TrialResult,
    classify: Callable[[Evidence], Diagnosis],
    inspect: Callable[[str], str | None],
    read: Read,
) -> Verdict:
    # The order matters: first an error of the trial itself, then counted steps, then endings that prove nothing, then a
    # successful end. What remains is a failure, which is judged by its cause.
    if result.rehearsal is not None and (result.layer != "exit" or result.error):
        return _make_verdict(spec, result, Outcome.PASS, _describe_stopped_rehearsal(spec, result, result.rehearsal))
    if result.error:
        return _make_verdict(spec, result, Outcome.INCONCLUSIVE, result.error, lasting=bool(result.touched))
    if result.layer == "step":
        how = " (counted by step())" if result.step_source == "explicit" else ""
        return _make_verdict(spec, result, Outcome.PASS, f"{_describe_count(result)} on {_format_gpus(spec)}{how}")
    found = _find_traceback(result)
    # A crash may come from the state of the node at that time, so its outcome is not marked as lasting.
    failed = bool(found and result.crashed)
    if result.layer == "timeout":
        return _make_verdict(
            spec, result, Outcome.INCONCLUSIVE, _describe_timeout(spec, result, found), lasting=not failed
        )
    if result.layer == "no_training":
        return _make_verdict(
            spec, result, Outcome.INCONCLUSIVE, _describe_no_training(result, found), lasting=not failed
        )
    if result.layer == "no_activity":
        reason = _describe_no_activity(spec, result, found)
        return _make_verdict(spec, result, Outcome.INCONCLUSIVE, reason, lasting=not failed)
    if result.exit_code == 0 and not failed:
        if result.unproven and not result.steps:
            reason = f"the script ended after {result.seconds:.0f} s and showed nothing: {result.unproven}"
            return _make_verdict(spec, result, Outcome.INCONCLUSIVE, reason)
        return _make_verdict(spec, result, Outcome.PASS, _describe_success(spec, result))
    source = lambda path: read(os.path.join(spec.chdir, path))  # noqa: E731, PTH118
    return _judge_failure(spec, result, _diagnose_traceback(spec, result, found, classify), found, inspect, source)


def _diagnose_traceback(
    spec: TrialSpec, result: TrialResult, found: TracebackSummary | None, classify: Callable[[Evidence], Diagnosis]
) -> Diagnosis:
    """Classify the whole output, or only the traceback if an earlier line would mislead the classifier.

    Lines before the traceback are left out if one of them blames the node, or if commands of the script failed and
    the script went on, because it survived those lines (`nvidia-smi || :`, `module: command not found`).
    """
    if found is not None and result.rehearsal is not None:
        # Later commands of the script may fail because this one did.
        return classify(_make_evidence(spec, replace(result, logs=tuple(map(_keep_first_traceback, result.logs)))))
    whole = classify(_make_evidence(spec, result))
    if found is None or (whole.category not in ELSEWHERE and not result.failed_commands):
        return whole
    return classify(_make_evidence(spec, replace(result, logs=tuple(map(_cut_at_traceback, result.logs)))))


# Between the tracebacks of one error.
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def _keep_first_traceback(log: LogTail) -> LogTail:
    """Return the log from its first traceback up to that of the next error."""
    cut = _cut_at_traceback(log)
    end = cut.text.find(TRACEBACK, len(TRACEBACK))
    while end >= 0 and any(words in cut.text[max(0, end - 200) : end] for words in _CHAINED):
        end = cut.text.find(TRACEBACK, end + len(TRACEBACK))
    return cut if end < 0 else replace(cut, text=cut.text[:end])


def _cut_at_traceback(log: LogTail) -> LogTail:
    at = max(0, log.text.find(TRACEBACK))
    return replace(log, text=log.text[at:], first_line=log.first_line + log.text.count("\n", 0, at))


def _judge_failure(
    spec: TrialSpec,
    result: TrialResult,
    diagnosis: Diagnosis,
    found: TracebackSummary | None,
    inspect: Callable[[str], str | None],
    read: Read,
) -> Verdict:
    if why := find_shortening_doubt(result, found, diagnosis.category, read):
        reason = f"{_describe_count(result)}; what failed after them may not fail in the job, because {why}: "
        reason += _describe_failure(spec, result, diagnosis, found)
        return _make_verdict(spec, result, Outcome.INCONCLUSIVE, reason, lasting=True)
    found = found or find_silent_exit(spec, result, read)
    # A delayed job's input files may be rewritten before it starts, so they are not inspected.
    path, fault = ("", "") if spec.delay else _find_broken_input(spec, diagnosis, inspect)
    category = "incorrect_inputs" if fault and diagnosis.category in _PROVEN_BY_FILE else diagnosis.category
    doubt = find_doubt(spec, result, diagnosis, found, read)
    if fault and category == "incorrect_inputs" and not (found and found.kind == "FileNotFoundError"):
        # slurmwrap's own read showed that the file is broken, so there is no doubt. A file that is missing is
        # excluded, because it may belong to another rank or be on another node.
        doubt = None
    what = _describe_failure(spec, result, diagnosis, found)
    what += f" (after {_describe_count(result).removesuffix(' ran')})" if result.rehearsal is not None else ""
    return Verdict(
        outcome=Outcome.INCONCLUSIVE if doubt else Outcome.FAIL,
        lasting=doubt is not None and doubt.lasting,
        layer=_select_layer(result),
        reason=f"{doubt.why}: {what}" if doubt else f"{path} {fault} ({what})" if fault and path else what,
        steps=result.steps,
        seconds=result.seconds,
        category=category,
        evidence=(*_cite_own_line(found), *diagnosis.evidence),
        measurement=result.measurement,
        input_path=path if category == "incorrect_inputs" else "",
        input_fault=fault if category == "incorrect_inputs" else "",
        input_digest=_compute_digest(path) if category == "incorrect_inputs" and path else "",
    )


def _find_broken_input(spec: TrialSpec, diagnosis: Diagnosis, inspect: Callable[[str], str | None]) -> tuple[str, str]:
    """Return (path, what slurmwrap's own read found wrong with it); (path, "") if only the log names the file."""
    named = os.path.normpath(os.path.join(spec.chdir, diagnosis.input_path)) if diagnosis.input_path else ""  # noqa: PTH118
    for path in dict.fromkeys(p for p in (named, *spec.inputs) if p):
        if fault := inspect(path):
            return path, fault
    return named, ""


def _compute_digest(path: str) -> str:
    try:
        return job_inputs.digest(path)
    except OSError:
        return ""


def _make_evidence(spec: TrialSpec, result: TrialResult) -> Evidence:
    return Evidence(
        state="FAILED",
        exit_code=result.exit_code or (1 if result.signal is None else 0),
        signal=result.signal,
        logs=result.logs,
        gpus=1,
        run_s=result.seconds,
        mem_limit_mib=spec.mem_mib,
        mem_peak_mib=result.measurement.mem_peak_mib,
        oom_kills=result.oom_kills,
    )


def _describe_failure(
    spec: TrialSpec, result: TrialResult, diagnosis: Diagnosis, found: TracebackSummary | None
) -> str:
    if found is not None:
        return f"{_make_relative(found.own.file, spec.chdir)}:{found.own.line}: {found.error[:200]}"
    ending = f"signal {result.signal}" if result.signal is not None else f"exit code {result.exit_code}"
    root = next((c.text.strip() for c in diagnosis.evidence if c.text.strip()), "")
    return f"{spec.script_name or 'the script'} ended with {ending}" + (f": {root[:200]}" if root else "")


def _cite_own_line(found: TracebackSummary | None) -> tuple[Citation, ...]:
    return (Citation(source=found.own.file, line=found.own.line, text=found.own.code),) if found else ()


def _make_relative(path: str, chdir: str) -> str:
    return path.removeprefix(chdir.rstrip("/") + "/")


def _find_traceback(result: TrialResult) -> TracebackSummary | None:
    """Return the traceback in the script's own output, or else in the files to which its programs wrote output."""
    return next((found for log in result.logs if (found := blame(log.text))), None)


# Source of a step count -> the unit that it counts.
_NOUNS = {
    "optimizer": "optimizer step",
    "keras": "Keras training batch",
    "deepspeed": "DeepSpeed step",
    "megatron": "Megatron step",
    "jax": "JAX update",
    "backward": "backward pass",
    "dataloader": "batch from the DataLoader",
    "explicit": "step",
}


def _describe_count(result: TrialResult) -> str:
    source, count = result.step_source, result.steps
    if source == "gpu":
        return "the program, whose steps cannot be counted, kept the GPU busy"
    if source == "text":
        return f"{_format_count(count, 'training step')} by the program's own output ran"
    return f"{_format_count(count, _NOUNS.get(source, 'optimizer step'))} ran"


def _format_count(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    first, *rest = noun.split(" from ")
    plural = f"{first}es" if first.endswith(("ch", "ss")) else f"{first}s"
    return " from ".join((f"{count} {plural}", *rest))


def _format_gpus(spec: TrialSpec) -> str:
    gpus = "one GPU" if spec.trial_gpus <= 1 else f"{spec.trial_gpus} GPUs"
    return f"{gpus} by --prerun-command" if spec.command else gpus


def _describe_timeout(spec: TrialSpec, result: TrialResult, found: TracebackSummary | None) -> str:
    seen = f"{result.steps} of {spec.steps} optimizer steps" if result.steps else "no optimizer step"
    seen = f"no optimizer step was seen; {_describe_count(result)}" if result.step_source in SIGNS else seen
    wrong = f"a traceback was printed: {found.error[:200]}" if found and result.crashed else "nothing failed"
    return f"{seen} within {result.seconds:.0f} s; {wrong}{_describe_uncounted(result)}"


def _describe_uncounted(result: TrialResult) -> str:
    return f"; {result.uncounted}" if result.uncounted and not result.steps else ""


def _describe_stopped_rehearsal(spec: TrialSpec, result: TrialResult, rehearsal: Rehearsal) -> str:
    ran = f"{_describe_count(result)} on {_format_gpus(spec)}"
    if result.error:
        return f"{ran}; the shortened rest was given up: {result.error}"
    return f"{ran}, {describe_rehearsal(rehearsal, is_complete=False)}"


def _describe_success(spec: TrialSpec, result: TrialResult) -> str:
    if result.rehearsal is not None:
        rest = describe_rehearsal(result.rehearsal, is_complete=True)
        return f"{_describe_count(result)} on {_format_gpus(spec)}, {rest}"
    seen = f"{_describe_count(result)}" if result.steps else "no optimizer step was seen"
    left_out = f"; '{result.refused[0]}' was left out" if result.refused else ""
    return f"the script ran to its end; {seen}{left_out}{_describe_uncounted(result)}"


def _select_layer(result: TrialResult) -> str:
    return result.step_source or "optimizer" if result.layer == "step" else result.layer


def _describe_no_training(result: TrialResult, found: TracebackSummary | None) -> str:
    quiet = f"nothing failed within {result.seconds:.0f} s"
    wrong = f"a traceback was printed: {found.error[:200]}" if found and result.crashed else quiet
    return f"no optimizer step will come: {result.no_training}; {wrong}{_describe_uncounted(result)}"


def _describe_no_activity(spec: TrialSpec, result: TrialResult, found: TracebackSummary | None) -> str:
    said = f"{result.last_line.strip()[:120]!r}" if result.last_line.strip() else "its start, without output"
    after = _describe_count(result).removesuffix(" ran") if result.steps else said
    place = next((at for log in result.logs if (at := python_traceback.find_waiting_place(log.text))), "")
    waits = f"; it waits in {_make_relative(place, spec.chdir)}" if place else ""
    wrong = f"; a traceback was printed: {found.error[:200]}" if found and result.crashed else ""
    return f"no activity for {spec.no_activity_s:.0f} s after {after}{waits}{wrong}"


def _make_verdict(
    spec: TrialSpec, result: TrialResult, outcome: Outcome, reason: str, *, lasting: bool = False
) -> Verdict:
    return Verdict(
        lasting=lasting,
        outcome=outcome,
        layer=_select_layer(result),
        reason=reason,
        steps=result.steps,
        seconds=result.seconds,
        measurement=result.measurement,
    )
