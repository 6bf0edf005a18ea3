"""Make a Diagnosis from Evidence: the root cause with the lines that show it. Pure.

Sources are trusted in this order: Slurm about its own actions (the state, then its DUE TO lines); the kernel, where the
application's error is vague; the application's first failure that it did not survive; exit codes. What none of these
explains stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from slurmwrap.diagnosis import slurm_state
from slurmwrap.diagnosis.advice import find_specific_advice, make_printable
from slurmwrap.diagnosis.cited_context import add_context, find_own_place
from slurmwrap.diagnosis.kernel_cause import AMBIGUOUS, LINK_CATEGORIES, KernelCause, find_kernel_cause, find_link_cause
from slurmwrap.diagnosis.log_matches import DECISIVE, ORDINARY, STRONG, LogMatch, find_marks
from slurmwrap.diagnosis.log_progress import LogProgress, find_last_progress, find_progress, find_remaining
from slurmwrap.diagnosis.log_rows import LogRows, cut_rows, read_log, strip_prefix
from slurmwrap.diagnosis.network_facts import list_broken_links
from slurmwrap.diagnosis.node_facts import UNREAD
from slurmwrap.diagnosis.output_end import find_error_at_end, may_end_in_error
from slurmwrap.diagnosis.root_cause import SPEAKS_OF_PEERS, LogView, find_root
from slurmwrap.diagnosis.signatures import SignatureSet, get_default_signatures, get_signatures_with
from slurmwrap.diagnosis.taxonomy import CATEGORIES, COMPLETED_WITH_ERROR, NO_SIGNATURE, SUCCESS
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation, Diagnosis, Evidence

# Marks of less weight are hints.
_SUMMARY_WEIGHT = 30
_REPORTED_BY = {"kernel": "kernel reports", "nvml": "GPU needs help", "network": "link failed"}
# Number of rows at the end that are searched for progress if no failure is visible.
_END_ROWS = 200
# Maximum number of citations of a diagnosis.
_MOST_CITATIONS = 4
_TEXT_CAP = 500
_NAN_CRASH = re.compile(r"[Aa]ssert|nan|NaN|NAN|\binf\b|Inf\b|FloatingPoint|LinAlgError|ValueError|multinomial")
_GPU_CATEGORIES = frozenset(
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
# Slurm knows that these happened, but perhaps not why: a node is gone because its spot capacity was reclaimed.
_EXPLAINED_BY_LOG = frozenset(("cancelled", "node_failure"))
_TRACEBACK_CATEGORY = "traceback_from_crash"
_RAISED = re.compile(r"((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80})(?:: ('[^'\n]{1,80}')$|:|$)")
_HOOK_LINES = 2  # maximum number that is cited
_RELEVANT_HOOK_LINE = re.compile(r"refused|let the job start|GPUs could not be read|failed|timed out")
_HOOK_FAILED = re.compile(r"^(?:prolog|launch)\b.{0,80}\b(?:refused|failed|timed out)")
# Exceptions that a hardware fault does not raise.
_PROGRAM_BUG = re.compile(
    r"^(?:\S{1,40} )?"
    r"(?:KeyError|IndexError|NameError|TypeError|UnboundLocalError|ZeroDivisionError|RecursionError)(?::|$)"
)
_VAGUE = re.compile(
    r"unspecified launch failure|unknown error|launch timed out|CUDNN_STATUS_|CUBLAS_STATUS_|SIGABRT|Abort"
)


def diagnose_run(evidence: Evidence, *, signatures: SignatureSet | None = None) -> Diagnosis:
    """Return the diagnosis of one run that ended. No content of a log makes it raise an exception."""
    if slurm_state.has_completed(evidence) and not slurm_state.has_hidden_failure(evidence):
        return _diagnose_completed(evidence, signatures)
    known = signatures or get_default_signatures()
    views = tuple(_make_log_view(read_log(tail), index, known) for index, tail in enumerate(evidence.logs))
    kernel = find_kernel_cause(evidence.kernel, known, evidence.nvml)
    diagnosis = _add_node(_select_diagnosis(evidence, views, kernel), evidence, kernel)
    diagnosis = _add_port_lines(_add_hook_reports(diagnosis, evidence), evidence)
    diagnosis = _add_steps(_add_context(diagnosis, views), views)
    if diagnosis.category != "time_limit":
        return diagnosis
    slowed = [line for line in evidence.nvml if " was slowed down in " in line][:_HOOK_LINES]
    cited = tuple(replace(_cite("hook", 0, line), role="support") for line in slowed)
    diagnosis = replace(diagnosis, evidence=(*diagnosis.evidence, *cited))
    logs = [view.log for view in views]
    return replace(diagnosis, remaining_s=find_remaining(logs, evidence.run_s, resumed=diagnosis.resumed))


def _diagnose_completed(evidence: Evidence, signatures: SignatureSet | None) -> Diagnosis:
    """Return success, or completed_with_error (neither success nor failure) if the output ends with an error."""
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
    """Return diagnose_run() with the shipped signatures and those of the site's own file; "" for no file.

    The shipped ones alone are loaded with the first failure, so a pre-run that passes never loads them. Raises
    ConfigError with file, signature and reason.
    """
    return partial(diagnose_run, signatures=get_signatures_with(site) if site else None)


def _add_hook_reports(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Add hook reports that agree with a fault of the node or GPU. They support a diagnosis, but never make one."""
    if diagnosis.category not in _GPU_CATEGORIES | {"node_failure"} or diagnosis.signature == "hook.refused":
        return diagnosis
    relevant = [line for line in evidence.hooks if _RELEVANT_HOOK_LINE.search(line)]
    lines = tuple(_cite("hook", 0, line) for line in relevant[:_HOOK_LINES])
    return replace(diagnosis, evidence=(*diagnosis.evidence, *(replace(line, role="support") for line in lines)))


def _add_port_lines(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Add what the nodes' network ports show to an error of communication, unless it is the cause.

    A broken link is evidence that no user can write. Few errors, or a lower rate, are not, so they are only shown.
    """
    if diagnosis.category not in LINK_CATEGORIES or not evidence.network:
        return diagnosis
    broken = list_broken_links(evidence.network)
    cited = [_cite(f"network:{event.node}", 0, event.text) for event in broken]
    cited += [_cite("hook", 0, line) for line in evidence.network if line not in {event.text for event in broken}]
    lines = tuple(replace(line, role="support") for line in cited[:_HOOK_LINES])
    return replace(diagnosis, evidence=(*diagnosis.evidence, *lines))


def _add_context(diagnosis: Diagnosis, views: tuple[LogView, ...]) -> Diagnosis:
    logs = [view.log for view in views]
    diagnosis = replace(diagnosis, evidence=tuple(add_context(cited, logs) for cited in diagnosis.evidence))
    place = find_own_place(diagnosis.evidence) if _TRACEBACK_CATEGORY in (diagnosis.category, diagnosis.error) else None
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


def _select_diagnosis(evidence: Evidence, views: tuple[LogView, ...], kernel: KernelCause | None) -> Diagnosis:
    # The order of the checks is the order of trust. A decisive log line overrides only one decisive cause of Slurm, the
    # cancellation.
    root = find_root(views)
    has_decisive_match = root is not None and root.weight >= DECISIVE
    slurm_cause = slurm_state.find_decisive_cause(evidence)
    is_reclaimed = root is not None and root.category == "job_preempted" and root.weight >= STRONG
    is_explained = has_decisive_match if slurm_cause is None or slurm_cause.category == "cancelled" else is_reclaimed
    if slurm_cause is not None and not (slurm_cause.category in _EXPLAINED_BY_LOG and is_explained):
        line = _find_confirming_match(views, slurm_cause.category)
        return _diagnose_by_slurm(slurm_cause, evidence, views, line)
    if root is not None and (root.weight >= DECISIVE or slurm_cause is not None):
        return _diagnose_by_match(root, views)
    if kernel is not None and _is_kernel_decisive(kernel, root):
        return _diagnose_by_kernel(kernel, root, views)
    if root is not None and (link := find_link_cause(evidence, root.category, root.text)):
        return replace(_diagnose_by_kernel(link, root, views), node=link.node)
    if _is_out_of_host_memory(evidence, root):
        return _make_diagnosis("cpu_oom", "cgroup.oom_kill", 0.95, (_cite("slurm", 0, _describe_memory(evidence)),))
    if root is not None and (diverged := _diagnose_divergence(root, views)):
        return diverged
    if root is not None and not (root.weight < _SUMMARY_WEIGHT and _has_died_of_signal(evidence)):
        return _diagnose_by_match(root, views)
    return _diagnose_without_root(evidence, views)


def _has_died_of_signal(evidence: Evidence) -> bool:
    """Return True if the exit code shows a crash. That is stronger evidence than a line that is only a hint."""
    exit_cause = slurm_state.find_exit_cause(evidence)
    return exit_cause is not None and exit_cause.category in ("core_dump", "invalid_memory_access")


def _find_confirming_match(views: tuple[LogView, ...], category: str) -> LogMatch | None:
    marks = (mark for view in views for mark in view.marks if mark.category == category)
    return max(marks, key=lambda mark: mark.weight, default=None)


def _is_kernel_decisive(kernel: KernelCause, root: LogMatch | None) -> bool:
    if root is None or root.weight < ORDINARY:
        return True
    if kernel.rank <= 1:
        return root.category in AMBIGUOUS and not _PROGRAM_BUG.search(root.text)
    if kernel.rank == 2:
        return root.category in _GPU_CATEGORIES
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
    """Return model_diverged if an assertion or device-side assert follows a visible NaN, else None."""
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
    if exit_cause := slurm_state.find_exit_cause(evidence):
        return _make_diagnosis(exit_cause.category, exit_cause.signature, 0.5, (_cite("slurm", 0, exit_cause.text),))
    return _make_diagnosis(
        NO_SIGNATURE, "", 0.2, _cite_last_lines(views) or (*_cite_slurm(evidence), *_cite_unread_output(evidence))
    )


def _diagnose_by_slurm(
    slurm_cause: slurm_state.SlurmCause, evidence: Evidence, views: tuple[LogView, ...], line: LogMatch | None
) -> Diagnosis:
    cites = [_cite("slurm", 0, slurm_cause.text)]
    if line is not None:
        cites.append(replace(_cite_mark(line, views), role="support"))
    return _make_diagnosis(slurm_cause.category, slurm_cause.signature, 0.98, tuple(cites))


def _diagnose_by_kernel(kernel: KernelCause, root: LogMatch | None, views: tuple[LogView, ...]) -> Diagnosis:
    source = f"{kernel.source}:{kernel.node}" if kernel.node else kernel.source
    cites = [_cite(source, kernel.line, kernel.text)]
    if root is not None:
        cites.append(replace(_cite_mark(root, views), role="cascade"))
    found = _make_diagnosis(kernel.category, kernel.signature, 0.97 if kernel.rank <= 1 else 0.85, tuple(cites))
    advice = kernel.advice or f"{found.advice} The {_REPORTED_BY[kernel.source]}: {kernel.meaning}."
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
    """Yield the first line of each consequence in the log, one per signature."""
    seen = {root.signature}
    for mark in (mark for view in views for mark in view.marks):
        later = mark.log != root.log or mark.row > root.row or mark.category in SPEAKS_OF_PEERS
        if later and mark.role in ("cascade", "root") and mark.signature not in seen and len(seen) < _MOST_CITATIONS:
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
    """Return why the job's output could not be read, if a hook reported that."""
    hook_line = next((line for line in evidence.hooks if UNREAD in line), None)
    return () if hook_line is None else (replace(_cite("hook", 0, hook_line), role="support"),)


def _cite_last_lines(views: tuple[LogView, ...]) -> tuple[Citation, ...]:
    """Return the last line that is not blank, as a starting point for a person."""
    for view in views:
        for row in range(len(view.log.rows) - 1, -1, -1):
            if view.log.rows[row].strip():
                return (_cite(view.log.name, view.log.numbers[row], view.log.rows[row]),)
    return ()
