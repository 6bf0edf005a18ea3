"""Turns Evidence into a Diagnosis: the root cause with the lines it rests on. Pure.

Who is believed, in this order: Slurm about its own doing (state, then its DUE TO lines), the kernel where the
application is vague, then the application's first failure that it did not survive, then exit codes. Unknown stays
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from slurmwrap.diagnosis import slurm_state
from slurmwrap.diagnosis.advice import find_specific_advice, make_printable
from slurmwrap.diagnosis.cited_context import add_context, find_own_place
from slurmwrap.diagnosis.kernel_cause import AMBIGUOUS, KernelCause, find_kernel_cause
from slurmwrap.diagnosis.log_matches import DECISIVE, ORDINARY, STRONG, LogMatch, find_marks
from slurmwrap.diagnosis.log_progress import LogProgress, find_last_progress, find_progress, find_remaining
from slurmwrap.diagnosis.log_rows import LogRows, cut_rows, read_log, strip_prefix
from slurmwrap.diagnosis.node_facts import UNREAD
from slurmwrap.diagnosis.output_end import find_error_at_end, may_end_in_error
from slurmwrap.diagnosis.root_cause import SPEAKS_OF_PEERS, LogView, find_root
from slurmwrap.diagnosis.signatures import SignatureSet, get_default_signatures, get_signatures_with
from slurmwrap.diagnosis.taxonomy import CATEGORIES, COMPLETED_WITH_ERROR, NO_SIGNATURE, SUCCESS
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation, Diagnosis, Evidence

_SUMMARY = 30  # below are hints
_SAYS = {"kernel": "kernel reports", "nvml": "GPU needs help"}
# Rows at the end that are looked at for progress when nothing failed visibly.
_END_ROWS = 200
# Citations of a diagnosis at most.
_CITED = 4
_TEXT_CAP = 500
_NAN_CRASH = re.compile(r"[Aa]ssert|nan|NaN|NAN|\binf\b|Inf\b|FloatingPoint|LinAlgError|ValueError|multinomial")
_GPU_SIDE = frozenset(
    (
        "cuda_failure",
        "invalid_memory_access",
        "nccl_error",
        "core_dump",
        "gpu_ecc_error",
        "gpu_hardware",
        "cuda_init_failed",
    )
)
_OF_TRACEBACK = "traceback_from_crash"
_RAISED = re.compile(r"((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80})(?:: ('[^'\n]{1,80}')$|:|$)")
_HOOK_LINES = 2  # cited at most
_HOOK_TELLS = re.compile(r"refused|let the job start|GPUs could not be read|failed|timed out")
_HOOK_FAILED = re.compile(r"^(?:prolog|launch)\b.{0,80}\b(?:refused|failed|timed out)")
# Exceptions that no fault of a machine raises.
_BUG = re.compile(
    r"^(?:\S{1,40} )?"
    r"(?:KeyError|IndexError|NameError|TypeError|UnboundLocalError|ZeroDivisionError|RecursionError)(?::|$)"
)
_VAGUE = re.compile(
    r"unspecified launch failure|unknown error|launch timed out|CUDNN_STATUS_|CUBLAS_STATUS_|SIGABRT|Abort"
)


def diagnose_run(evidence: Evidence, *, signatures: SignatureSet | None = None) -> Diagnosis:
    """The diagnosis of one ended attempt. Never raises for what a log may hold."""
    if slurm_state.has_completed(evidence) and not slurm_state.has_hidden_failure(evidence):
        return _diagnose_completed(evidence, signatures)
    known = signatures or get_default_signatures()
    views = tuple(_make_log_view(read_log(tail), index, known) for index, tail in enumerate(evidence.logs))
    kernel = find_kernel_cause(evidence.kernel, known, evidence.nvml)
    diagnosis = _add_node(_judge(evidence, views, kernel), evidence, kernel)
    diagnosis = _add_steps(_add_context(_add_hook_reports(diagnosis, evidence), views), views)
    if diagnosis.category != "time_limit":
        return diagnosis
    logs = [view.log for view in views]
    return replace(diagnosis, remaining_s=find_remaining(logs, evidence.run_s, resumed=diagnosis.resumed))


def _diagnose_completed(evidence: Evidence, signatures: SignatureSet | None) -> Diagnosis:
    """A success, unless the output ends with an error: that is neither a success nor a failure."""
    suspect = any(may_end_in_error(tail.text) for tail in evidence.logs)
    logs = tuple(map(read_log, evidence.logs)) if suspect else ()
    end = find_error_at_end(logs)
    if end is None:
        return _make_diagnosis(SUCCESS, "slurm.completed", 0.99, _cite_slurm(evidence))
    log = logs[end.log]
    if end.nan:
        shown = _cite(log.name, log.numbers[end.start], log.rows[end.start])
        error = _make_diagnosis("model_diverged", "log.nan_at_end", 0.9, (shown,))
    else:
        last = cut_rows(log, end.start)
        marks = find_marks(last, 0, signatures or get_default_signatures())
        view = LogView(log=last, marks=marks, progress=LogProgress(rows=(), nan=(), finished=()))
        root = find_root((view,))
        died = _cite(log.name, log.numbers[end.row], log.rows[end.row])
        error = (
            _diagnose_by_match(root, (view,))
            if root
            else _make_diagnosis("traceback_from_crash", "python.exception", 0.75, (died,))
        )
    judged = _make_diagnosis(
        COMPLETED_WITH_ERROR, error.signature, error.confidence, (*error.evidence, *_cite_slurm(evidence))
    )
    judged = replace(judged, domain=error.domain, advice=error.advice, error=error.category)
    views = tuple(LogView(log=one, marks=(), progress=LogProgress(rows=(), nan=(), finished=())) for one in logs)
    return _add_steps(_add_context(judged, views), views)


def make_classifier(site: str) -> Callable[[Evidence], Diagnosis]:
    """`classify` with the signatures of the site's own file next to the shipped ones; "" for none.

    The shipped ones alone are loaded with the first failure: a pre-run that passes does without. Raises ConfigError
    naming file, signature and reason.
    """
    return partial(diagnose_run, signatures=get_signatures_with(site) if site else None)


def _add_hook_reports(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """What the nodes' hooks reported agrees with a fault of the node or the GPU; it never makes one."""
    if diagnosis.category not in _GPU_SIDE | {"node_failure"} or diagnosis.signature == "hook.refused":
        return diagnosis
    told = [line for line in evidence.hooks if _HOOK_TELLS.search(line)]
    lines = tuple(_cite("hook", 0, line) for line in told[:_HOOK_LINES])
    return replace(diagnosis, evidence=(*diagnosis.evidence, *(replace(line, role="support") for line in lines)))


def _add_context(diagnosis: Diagnosis, views: tuple[LogView, ...]) -> Diagnosis:
    logs = [view.log for view in views]
    diagnosis = replace(diagnosis, evidence=tuple(add_context(cited, logs) for cited in diagnosis.evidence))
    place = find_own_place(diagnosis.evidence) if _OF_TRACEBACK in (diagnosis.category, diagnosis.error) else None
    raised = _RAISED.match(strip_prefix(diagnosis.evidence[0].text)) if place else None
    if place is None or raised is None:
        return diagnosis
    what = f"the key {raised[2]} does not exist" if raised[1] == "KeyError" and raised[2] else raised[1]
    return replace(
        diagnosis, advice=f"Line {place[1]} of {make_printable(place[0].rpartition('/')[2])}: {make_printable(what)}."
    )


def _add_steps(diagnosis: Diagnosis, views: tuple[LogView, ...]) -> Diagnosis:
    steps = find_last_progress([view.log for view in views])
    return replace(diagnosis, step=steps.step, resumed=steps.resumed, checkpoint_step=steps.checkpoint_step)


def _make_log_view(log: LogRows, index: int, signatures: SignatureSet) -> LogView:
    marks = find_marks(log, index, signatures)
    first = next((mark.row for mark in marks if mark.role == "root"), max(0, len(log.rows) - _END_ROWS))
    return LogView(log=log, marks=marks, progress=find_progress(log, after=first))


def _judge(evidence: Evidence, views: tuple[LogView, ...], kernel: KernelCause | None) -> Diagnosis:
    root = find_root(views)
    said_more = root is not None and root.weight >= DECISIVE
    word = slurm_state.find_decisive_cause(evidence)
    if word is not None and not (word.category == "cancelled" and said_more):
        line = _find_confirming_match(views, word.category)
        return _diagnose_by_slurm(word, evidence, views, line)
    if root is not None and root.weight >= DECISIVE:
        return _diagnose_by_match(root, views)
    if kernel is not None and _is_kernel_decisive(kernel, root):
        return _diagnose_by_kernel(kernel, root, views)
    if _is_out_of_host_memory(evidence, root):
        return _make_diagnosis("cpu_oom", "cgroup.oom_kill", 0.95, (_cite("slurm", 0, _describe_memory(evidence)),))
    if root is not None and (diverged := _diagnose_divergence(root, views)):
        return diverged
    if root is not None and not (root.weight < _SUMMARY and _has_died_of_signal(evidence)):
        return _diagnose_by_match(root, views)
    return _diagnose_without_root(evidence, views)


def _has_died_of_signal(evidence: Evidence) -> bool:
    """Whether the exit code shows a crash: more than a line that is only a hint does."""
    word = slurm_state.exit_word(evidence)
    return word is not None and word.category in ("core_dump", "invalid_memory_access")


def _find_confirming_match(views: tuple[LogView, ...], category: str) -> LogMatch | None:
    marks = (mark for view in views for mark in view.marks if mark.category == category)
    return max(marks, key=lambda mark: mark.weight, default=None)


def _is_kernel_decisive(kernel: KernelCause, root: LogMatch | None) -> bool:
    if root is None or root.weight < ORDINARY:
        return True
    if kernel.rank <= 1:
        return root.category in AMBIGUOUS and not _BUG.search(root.text)
    if kernel.rank == 2:
        return root.category in _GPU_SIDE
    vague = root.category in ("nccl_error", "core_dump", "cuda_failure") and bool(_VAGUE.search(root.text))
    return vague or (root.weight < STRONG and root.category in ("nccl_error", "core_dump"))


def _is_out_of_host_memory(evidence: Evidence, root: LogMatch | None) -> bool:
    if root is not None and root.weight >= STRONG and root.category not in AMBIGUOUS:
        return False
    if evidence.oom_kills:
        return True
    killed = evidence.signal == 9 or evidence.exit_code == 137
    peak, limit = evidence.mem_peak_mib, evidence.mem_limit_mib
    return bool(killed and peak and limit and peak >= 0.98 * limit)


def _describe_memory(evidence: Evidence) -> str:
    return f"{evidence.oom_kills or 0} OOM kills, peak {evidence.mem_peak_mib} MiB of {evidence.mem_limit_mib} MiB"


def _diagnose_divergence(root: LogMatch, views: tuple[LogView, ...]) -> Diagnosis | None:
    """An assertion or device-side assert that follows a visible NaN is the NaN's."""
    view = views[root.log]
    first = view.progress.nan_before(root.row)
    if first is None or root.category not in ("traceback_from_crash", "cuda_failure", "semantic_error"):
        return None
    if not _NAN_CRASH.search(root.text):
        return None
    shown = _cite(view.log.name, view.log.numbers[first], view.log.rows[first])
    crash = replace(_cite_mark(root, views), role="cascade")
    return _make_diagnosis("model_diverged", "log.nan_before_crash", 0.85, (shown, crash))


def _diagnose_without_root(evidence: Evidence, views: tuple[LogView, ...]) -> Diagnosis:
    if slurm_state.has_completed(evidence) and any(view.progress.finished for view in views):
        return _make_diagnosis(SUCCESS, "slurm.completed", 0.7, _cite_slurm(evidence))
    for view in views:
        rows, nan = view.progress.rows, view.progress.nan
        if rows and nan and nan[-1] >= rows[-1]:
            line = _cite(view.log.name, view.log.numbers[nan[-1]], view.log.rows[nan[-1]])
            return _make_diagnosis("model_diverged", "log.nan_at_end", 0.5, (line,))
    if refused := next((line for line in evidence.hooks if _HOOK_FAILED.search(line)), None):
        return _make_diagnosis("node_failure", "hook.refused", 0.6, (_cite("hook", 0, refused),))
    if word := slurm_state.exit_word(evidence):
        return _make_diagnosis(word.category, word.signature, 0.5, (_cite("slurm", 0, word.text),))
    return _make_diagnosis(
        NO_SIGNATURE, "", 0.2, _cite_last_lines(views) or (*_cite_slurm(evidence), *_cite_unread_output(evidence))
    )


def _diagnose_by_slurm(
    word: slurm_state.SlurmCause, evidence: Evidence, views: tuple[LogView, ...], line: LogMatch | None
) -> Diagnosis:
    cites = [_cite("slurm", 0, word.text)]
    if line is not None:
        cites.append(replace(_cite_mark(line, views), role="support"))
    return _make_diagnosis(word.category, word.signature, 0.98, tuple(cites))


def _diagnose_by_kernel(kernel: KernelCause, root: LogMatch | None, views: tuple[LogView, ...]) -> Diagnosis:
    source = f"{kernel.source}:{kernel.node}" if kernel.node else kernel.source
    cites = [_cite(source, kernel.line, kernel.text)]
    if root is not None:
        cites.append(replace(_cite_mark(root, views), role="cascade"))
    found = _make_diagnosis(kernel.category, kernel.signature, 0.97 if kernel.rank <= 1 else 0.85, tuple(cites))
    advice = kernel.advice or f"{found.advice} The {_SAYS[kernel.source]}: {kernel.meaning}."
    return replace(found, advice=advice, decision=kernel.decision or found.decision)


def _diagnose_by_match(root: LogMatch, views: tuple[LogView, ...]) -> Diagnosis:
    cites = [_cite_mark(root, views), *_cite_consequences(root, views)]
    found = _make_diagnosis(root.category, root.signature, _compute_confidence(root.weight), tuple(cites))
    return replace(
        found,
        decision=root.decision or found.decision,
        advice=root.advice or find_specific_advice(root.category, root.text) or found.advice,
        input_path=root.input_path if root.category == "incorrect_inputs" else "",
    )


def _cite_consequences(root: LogMatch, views: tuple[LogView, ...]) -> Iterable[Citation]:
    """The first line of each consequence that the log names, one per signature."""
    seen = {root.signature}
    for mark in (mark for view in views for mark in view.marks):
        later = mark.log != root.log or mark.row > root.row or mark.category in SPEAKS_OF_PEERS
        if later and mark.role in ("cascade", "root") and mark.signature not in seen and len(seen) < _CITED:
            seen.add(mark.signature)
            yield replace(_cite_mark(mark, views), role="cascade")


def _add_node(diagnosis: Diagnosis, evidence: Evidence, kernel: KernelCause | None) -> Diagnosis:
    if kernel is not None and kernel.node and (kernel.conclusive or diagnosis.signature == kernel.signature):
        return replace(diagnosis, node=kernel.node, conclusive=kernel.conclusive)
    if kernel is not None and kernel.conclusive:
        return replace(diagnosis, conclusive=True)
    slurm_says = diagnosis.signature in ("slurm.state_node_fail", "slurm.reason_node_down", "slurm.state_boot_fail")
    if slurm_says and len(evidence.nodes) == 1:
        return replace(diagnosis, node=evidence.nodes[0])
    return diagnosis


def _make_diagnosis(category: str, signature: str, confidence: float, evidence: tuple[Citation, ...]) -> Diagnosis:
    known = CATEGORIES[category]
    return Diagnosis(
        category=category,
        domain=known.domain,
        decision=known.decision,
        confidence=confidence,
        signature=signature,
        evidence=evidence,
        advice=known.advice,
    )


def _compute_confidence(weight: int) -> float:
    steps = ((DECISIVE, 0.98), (STRONG, 0.93), (50, 0.85), (ORDINARY, 0.75), (30, 0.5))
    return next((confidence for least, confidence in steps if weight >= least), 0.35)


def _cite(source: str, line: int, text: str) -> Citation:
    return Citation(source=source, line=line, text=text.strip()[:_TEXT_CAP])


def _cite_mark(log_match: LogMatch, views: tuple[LogView, ...]) -> Citation:
    return _cite(views[log_match.log].log.name, log_match.number, log_match.text)


def _cite_slurm(evidence: Evidence) -> tuple[Citation, ...]:
    if not evidence.state and evidence.exit_code is None:
        return ()
    ending = f"State {evidence.state or 'unknown'}, ExitCode {evidence.exit_code or 0}:{evidence.signal or 0}"
    derived, signal = evidence.derived_exit_code or 0, evidence.derived_signal or 0
    if (derived, signal) not in ((0, 0), (evidence.exit_code or 0, evidence.signal or 0)):
        ending += f"; the worst of its steps {derived}:{signal} (DerivedExitCode)"
    return (_cite("slurm", 0, ending),)


def _cite_unread_output(evidence: Evidence) -> tuple[Citation, ...]:
    """Why nothing is known of what the job wrote."""
    told = next((line for line in evidence.hooks if UNREAD in line), None)
    return () if told is None else (replace(_cite("hook", 0, told), role="support"),)


def _cite_last_lines(views: tuple[LogView, ...]) -> tuple[Citation, ...]:
    """The last line that is not blank, so that a person can go on from there."""
    for view in views:
        for row in range(len(view.log.rows) - 1, -1, -1):
            if view.log.rows[row].strip():
                return (_cite(view.log.name, view.log.numbers[row], view.log.rows[row]),)
    return ()
