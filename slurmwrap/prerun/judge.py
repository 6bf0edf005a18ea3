"""Turns a TrialResult into a Verdict: pass, fail, or inconclusive where one GPU cannot tell. Pure but for `inspect`.

A `fail` stops a job that its owner believes in, so it is said only for what the real job would meet as well. All else
that goes wrong is `inconclusive` and the job starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from slurmwrap.diagnosis.evidence import Citation, Diagnosis, Evidence
from slurmwrap.prerun import inputs
from slurmwrap.prerun.blame import Blame, blame
from slurmwrap.prerun.result import TrialResult
from slurmwrap.prerun.trial import TrialSpec
from slurmwrap.prerun.verdict import Outcome, Verdict

# Categories that a trial on another node, alone, cannot prove against the job itself.
_ELSEWHERE = {
    "cuda_init_failed": "this node offers no usable CUDA",
    "cuda_version_mismatch": "driver and runtime of this node do not fit; the job's nodes may differ",
    "mpi_error": "MPI ranks need each other",
    "mpi_runtime_failure": "MPI ranks need each other",
    "nccl_error": "processes that talk to each other cannot be shown on one GPU",
    "address_in_use": "a port was taken on this node",
}
_ONLY_TOGETHER = re.compile(
    r"world[ _-]?size|(?:tensor|pipeline|context|expert|sequence|data|model)[ _-]?(?:model[ _-]?)?parallel"
    r"|num(?:ber)?[ _-]?(?:of[ _-])?(?:gpus?|devices|ranks|processes|nodes|workers)\b|invalid device ordinal"
    r"|requested gpu|device[ _]?mesh|n_?gpus?\b|\bnnodes\b|invalid (?:src |dst |peer )?rank|default process group"
    r"|more processors requested than permitted|SLURM_N(?:NODES|TASKS|PROCS)|nvidia-smi: command not found"
    r"|libcuda\.so|libnvidia-ml|(?:at least|needs|requires?|expects?|expected) \d+ (?:gpus?|nodes?|ranks?|processes)",
    re.IGNORECASE,
)
_COUNTS_PEERS = re.compile(
    r"world|n_?ranks|num_ranks|\brank|device_count|n_?devices|n_?gpus?\b|num_gpus|n_?nodes|\bnodes\b|parallel|mesh"
    r"|\b[tpdc]p(?:_size)?\b|shard",
    re.IGNORECASE,
)
_PROVEN_BY_FILE = ("incorrect_inputs", "checkpoint_error", "traceback_from_crash", "semantic_error", "no_signature")


def judge(
    spec: TrialSpec,
    result: TrialResult,
    classify: Callable[[Evidence], Diagnosis],
    inspect: Callable[[str], str | None] = inputs.inspect,
) -> Verdict:
    """The verdict of one trial. `classify` is diagnosis.classify.classify, `inspect` our own read of a data file."""
    if result.error:
        return _verdict(spec, result, Outcome.INCONCLUSIVE, result.error)
    if result.layer == "step":
        how = " (counted by step())" if result.step_source == "explicit" else ""
        return _verdict(spec, result, Outcome.PASS, f"{_steps(result.steps)} ran on one GPU{how}")
    if result.layer == "timeout":
        seen = f"{result.steps} of {spec.steps} optimizer steps" if result.steps else "no optimizer step"
        return _verdict(spec, result, Outcome.INCONCLUSIVE, f"{seen} within {result.seconds:.0f} s; nothing failed")
    found = blame(result.logs[0].text) if result.logs else None
    if result.exit_code == 0 and not (result.crashed and found):
        seen = f"{_steps(result.steps)} ran" if result.steps else "no optimizer step was seen"
        return _verdict(spec, result, Outcome.PASS, f"the script ended well; {seen}")
    return _of_failure(spec, result, classify(_evidence(spec, result)), found, inspect)


def _of_failure(
    spec: TrialSpec,
    result: TrialResult,
    diagnosis: Diagnosis,
    found: Blame | None,
    inspect: Callable[[str], str | None],
) -> Verdict:
    path, fault = _broken_input(spec, diagnosis, inspect)
    category = "incorrect_inputs" if fault and diagnosis.category in _PROVEN_BY_FILE else diagnosis.category
    why_not = None if fault and category == "incorrect_inputs" else not_proven(spec, result, diagnosis, found)
    what = _what(spec, result, diagnosis, found)
    return Verdict(
        outcome=Outcome.INCONCLUSIVE if why_not else Outcome.FAIL,
        layer=result.layer,
        reason=f"{why_not}: {what}" if why_not else f"{path} {fault} ({what})" if fault and path else what,
        steps=result.steps,
        seconds=result.seconds,
        category=category,
        evidence=(*_own_line(found), *diagnosis.evidence),
        measurement=result.measurement,
        input_path=path if category == "incorrect_inputs" else "",
        input_fault=fault if category == "incorrect_inputs" else "",
        input_digest=_digest(path) if category == "incorrect_inputs" and path else "",
    )


def not_proven(spec: TrialSpec, result: TrialResult, diagnosis: Diagnosis, found: Blame | None) -> str | None:
    """Why the failure says nothing about the real job; None when it does."""
    many = spec.gpus > 1 or spec.nodes > 1
    if diagnosis.category in _ELSEWHERE:
        return _ELSEWHERE[diagnosis.category]
    transient = diagnosis.decision in ("retry", "retry_elsewhere") and diagnosis.category != "no_signature"
    if diagnosis.domain in ("IF", "RS") or transient:
        return "the cluster's doing, not the job's"
    if diagnosis.category == "gpu_oom" and many:
        return f"GPU memory ran out on one GPU; the job shares its memory over {max(spec.gpus, spec.nodes)}"
    if diagnosis.category == "cpu_oom" and (spec.mem_shrunk or many):
        return "the trial had less memory than the job"
    if many and _needs_more_gpus(result, diagnosis, found):
        return f"cannot be shown on one GPU (the job has {spec.gpus})"
    if result.refused and found is None:
        return f"the script needs '{result.refused[0]}', which a pre-run leaves out"
    if diagnosis.category == "no_signature" and found is None and (many or result.signal is not None):
        return "nothing recognisable failed"
    return None


def _needs_more_gpus(result: TrialResult, diagnosis: Diagnosis, found: Blame | None) -> bool:
    if found is None:
        cited = "\n".join(c.text for c in diagnosis.evidence) or "\n".join(t.text[-4096:] for t in result.logs)
        return bool(_ONLY_TOGETHER.search(cited))
    if _ONLY_TOGETHER.search(found.error):
        return True
    own = [f.code for f in found.frames if f.own] or [found.frames[-1].code]
    checks = [code for code in own if re.match(r"(assert|raise)\b", code)]
    if found.kind in ("IndexError", "KeyError", "ZeroDivisionError"):  # ranks[1], batch // (world - 1)
        checks.append(own[-1])
    return any(_COUNTS_PEERS.search(code) for code in checks)


def _broken_input(spec: TrialSpec, diagnosis: Diagnosis, inspect: Callable[[str], str | None]) -> tuple[str, str]:
    """(path, what is wrong with it by our own read); the path alone when only the log names it."""
    named = os.path.normpath(os.path.join(spec.chdir, diagnosis.input_path)) if diagnosis.input_path else ""  # noqa: PTH118
    for path in dict.fromkeys(p for p in (named, *spec.inputs) if p):
        if fault := inspect(path):
            return path, fault
    return named, ""


def _digest(path: str) -> str:
    try:
        return inputs.digest(path)
    except OSError:
        return ""


def _evidence(spec: TrialSpec, result: TrialResult) -> Evidence:
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


def _what(spec: TrialSpec, result: TrialResult, diagnosis: Diagnosis, found: Blame | None) -> str:
    if found is not None:
        return f"{_relative(found.own.file, spec.chdir)}:{found.own.line}: {found.error[:200]}"
    ending = f"signal {result.signal}" if result.signal is not None else f"exit code {result.exit_code}"
    root = next((c.text.strip() for c in diagnosis.evidence if c.text.strip()), "")
    return f"{spec.script_name or 'the script'} ended with {ending}" + (f": {root[:200]}" if root else "")


def _own_line(found: Blame | None) -> tuple[Citation, ...]:
    return (Citation(source=found.own.file, line=found.own.line, text=found.own.code),) if found else ()


def _relative(path: str, chdir: str) -> str:
    return path.removeprefix(chdir.rstrip("/") + "/")


def _steps(count: int) -> str:
    return f"{count} optimizer step{'' if count == 1 else 's'}"


def _verdict(spec: TrialSpec, result: TrialResult, outcome: Outcome, reason: str) -> Verdict:
    return Verdict(
        outcome=outcome,
        layer=result.layer,
        reason=reason,
        steps=result.steps,
        seconds=result.seconds,
        measurement=result.measurement,
    )
