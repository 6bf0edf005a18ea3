"""Turns a TrialResult into a Verdict: pass, fail, or inconclusive where one GPU cannot show it. Pure but for `inspect`.

A `fail` stops a job that its owner believes in, so it is said only for what the real job would meet as well. All else
that goes wrong is `inconclusive` and the job starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation, Diagnosis, Evidence, LogTail
from slurmwrap.model.trial_result import SIGNS, TrialResult
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.static import job_inputs
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict import python_traceback
from slurmwrap.prerun.verdict.python_traceback import TRACEBACK, TracebackSummary, blame
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
    """The verdict of one trial. `classify` is diagnosis.classify.classify, `inspect` our own read of a data file.

    `read` gives the text of a source file that a traceback names: its path as Python printed it, from the job's
    directory.
    """
    return replace(_decide(spec, result, classify, inspect, read), failed_commands=result.failed_commands)


def _decide(
    spec: TrialSpec,
    result: TrialResult,
    classify: Callable[[Evidence], Diagnosis],
    inspect: Callable[[str], str | None],
    read: Read,
) -> Verdict:
    if result.error:
        return _verdict(spec, result, Outcome.INCONCLUSIVE, result.error, lasting=bool(result.touched))
    if result.layer == "step":
        how = " (counted by step())" if result.step_source == "explicit" else ""
        return _verdict(spec, result, Outcome.PASS, f"{_counted(result)} on {_place(spec)}{how}")
    found = _blamed(result)
    # Perhaps of what the node or the moment had.
    failed = bool(found and result.crashed)
    if result.layer == "timeout":
        return _verdict(spec, result, Outcome.INCONCLUSIVE, _out_of_time(spec, result, found), lasting=not failed)
    if result.layer == "no_training":
        return _verdict(spec, result, Outcome.INCONCLUSIVE, _no_training(result, found), lasting=not failed)
    if result.exit_code == 0 and not failed:
        if result.unproven and not result.steps:
            reason = f"the script ended after {result.seconds:.0f} s and showed nothing: {result.unproven}"
            return _verdict(spec, result, Outcome.INCONCLUSIVE, reason)
        return _verdict(spec, result, Outcome.PASS, _ended_well(result))
    source = lambda path: read(os.path.join(spec.chdir, path))  # noqa: E731, PTH118
    return _judge_failure(spec, result, _diagnose_traceback(spec, result, found, classify), found, inspect, source)


def _diagnose_traceback(
    spec: TrialSpec, result: TrialResult, found: TracebackSummary | None, classify: Callable[[Evidence], Diagnosis]
) -> Diagnosis:
    """Of the traceback alone, where a line before it blames the node or is of a command that the script went on after:
    the script survived that (`nvidia-smi || :`, `module: command not found`)."""
    whole = classify(_make_evidence(spec, result))
    if found is None or (whole.category not in ELSEWHERE and not result.failed_commands):
        return whole
    return classify(_make_evidence(spec, replace(result, logs=tuple(map(_cut_at_traceback, result.logs)))))


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
    # It may be written anew.
    path, fault = ("", "") if spec.delay else _find_broken_input(spec, diagnosis, inspect)
    category = "incorrect_inputs" if fault and diagnosis.category in _PROVEN_BY_FILE else diagnosis.category
    doubt = find_doubt(spec, result, diagnosis, found, read)
    if fault and category == "incorrect_inputs" and not (found and found.kind == "FileNotFoundError"):
        # Broken by our own read; what is missing here may be another rank's, or another node's.
        doubt = None
    what = _what(spec, result, diagnosis, found)
    return Verdict(
        outcome=Outcome.INCONCLUSIVE if doubt else Outcome.FAIL,
        lasting=doubt is not None and doubt.lasting,
        layer=_layer(result),
        reason=f"{doubt.why}: {what}" if doubt else f"{path} {fault} ({what})" if fault and path else what,
        steps=result.steps,
        seconds=result.seconds,
        category=category,
        evidence=(*_own_line(found), *diagnosis.evidence),
        measurement=result.measurement,
        input_path=path if category == "incorrect_inputs" else "",
        input_fault=fault if category == "incorrect_inputs" else "",
        input_digest=_digest(path) if category == "incorrect_inputs" and path else "",
    )


def _find_broken_input(spec: TrialSpec, diagnosis: Diagnosis, inspect: Callable[[str], str | None]) -> tuple[str, str]:
    """(path, what is wrong with it by our own read); the path alone when only the log names it."""
    named = os.path.normpath(os.path.join(spec.chdir, diagnosis.input_path)) if diagnosis.input_path else ""  # noqa: PTH118
    for path in dict.fromkeys(p for p in (named, *spec.inputs) if p):
        if fault := inspect(path):
            return path, fault
    return named, ""


def _digest(path: str) -> str:
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


def _what(spec: TrialSpec, result: TrialResult, diagnosis: Diagnosis, found: TracebackSummary | None) -> str:
    if found is not None:
        return f"{_relative(found.own.file, spec.chdir)}:{found.own.line}: {found.error[:200]}"
    ending = f"signal {result.signal}" if result.signal is not None else f"exit code {result.exit_code}"
    root = next((c.text.strip() for c in diagnosis.evidence if c.text.strip()), "")
    return f"{spec.script_name or 'the script'} ended with {ending}" + (f": {root[:200]}" if root else "")


def _own_line(found: TracebackSummary | None) -> tuple[Citation, ...]:
    return (Citation(source=found.own.file, line=found.own.line, text=found.own.code),) if found else ()


def _relative(path: str, chdir: str) -> str:
    return path.removeprefix(chdir.rstrip("/") + "/")


def _blamed(result: TrialResult) -> TracebackSummary | None:
    """Of the script's own output, then of the files its programs wrote their output to."""
    return next((found for log in result.logs if (found := blame(log.text))), None)


# source of a count -> what one of it is
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


def _counted(result: TrialResult) -> str:
    source, count = result.step_source, result.steps
    if source == "gpu":
        return "the program, whose steps cannot be counted, kept the GPU busy"
    if source == "text":
        return f"{_number_of(count, 'training step')} by the program's own output ran"
    return f"{_number_of(count, _NOUNS.get(source, 'optimizer step'))} ran"


def _number_of(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    first, *rest = noun.split(" from ")
    plural = f"{first}es" if first.endswith(("ch", "ss")) else f"{first}s"
    return " from ".join((f"{count} {plural}", *rest))


def _place(spec: TrialSpec) -> str:
    gpus = "one GPU" if spec.trial_gpus <= 1 else f"{spec.trial_gpus} GPUs"
    return f"{gpus} by --prerun-command" if spec.command else gpus


def _out_of_time(spec: TrialSpec, result: TrialResult, found: TracebackSummary | None) -> str:
    seen = f"{result.steps} of {spec.steps} optimizer steps" if result.steps else "no optimizer step"
    seen = f"no optimizer step was seen; {_counted(result)}" if result.step_source in SIGNS else seen
    wrong = f"a traceback was printed: {found.error[:200]}" if found and result.crashed else "nothing failed"
    return f"{seen} within {result.seconds:.0f} s; {wrong}"


def _ended_well(result: TrialResult) -> str:
    seen = f"{_counted(result)}" if result.steps else "no optimizer step was seen"
    left_out = f"; '{result.refused[0]}' was left out" if result.refused else ""
    return f"the script ran to its end; {seen}{left_out}"


def _layer(result: TrialResult) -> str:
    return result.step_source or "optimizer" if result.layer == "step" else result.layer


def _no_training(result: TrialResult, found: TracebackSummary | None) -> str:
    quiet = f"nothing failed within {result.seconds:.0f} s"
    wrong = f"a traceback was printed: {found.error[:200]}" if found and result.crashed else quiet
    return f"no optimizer step will come: {result.no_training}; {wrong}"


def _verdict(spec: TrialSpec, result: TrialResult, outcome: Outcome, reason: str, *, lasting: bool = False) -> Verdict:
    return Verdict(
        lasting=lasting,
        outcome=outcome,
        layer=_layer(result),
        reason=reason,
        steps=result.steps,
        seconds=result.seconds,
        measurement=result.measurement,
    )
