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
from slurmwrap.diagnosis.advice import printable, specific
from slurmwrap.diagnosis.cited_context import in_context, own_place
from slurmwrap.diagnosis.kernel_cause import AMBIGUOUS, KernelCause, kernel_word
from slurmwrap.diagnosis.log_matches import DECISIVE, ORDINARY, STRONG, LogMatch, find_marks
from slurmwrap.diagnosis.log_progress import LogProgress, find_progress
from slurmwrap.diagnosis.log_rows import LogRows, cut_rows, read_log, strip_prefix
from slurmwrap.diagnosis.node_facts import UNREAD
from slurmwrap.diagnosis.output_end import find_error_at_end, may_end_in_error
from slurmwrap.diagnosis.remaining_time import find_remaining
from slurmwrap.diagnosis.root_cause import SPEAKS_OF_PEERS, LogView, find_root
from slurmwrap.diagnosis.signatures import SignatureSet, default_signatures, signatures_with
from slurmwrap.diagnosis.taxonomy import CATEGORIES, COMPLETED_WITH_ERROR, NO_SIGNATURE, SUCCESS
from slurmwrap.diagnosis.training_steps import last_progress
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation, Diagnosis, Evidence

_SUMMARY = 30  # below are hints
_SAYS = {"kernel": "kernel reports", "nvml": "GPU needs help"}
_END_ROWS = 200  # rows at the end that are looked at for progress when nothing failed visibly
_CITED = 4  # citations of a diagnosis at most
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


def classify(evidence: Evidence, *, signatures: SignatureSet | None = None) -> Diagnosis:
    """The diagnosis of one ended attempt. Never raises for what a log may hold."""
    if slurm_state.completed(evidence) and not slurm_state.hidden_failure(evidence):
        return _of_completed(evidence, signatures)
    known = signatures or default_signatures()
    views = tuple(_view(read_log(tail), index, known) for index, tail in enumerate(evidence.logs))
    kernel = kernel_word(evidence.kernel, known, evidence.nvml)
    diagnosis = _with_node(_judge(evidence, views, kernel), evidence, kernel)
    diagnosis = _with_steps(_in_context(_with_hooks(diagnosis, evidence), views), views)
    if diagnosis.category != "time_limit":
        return diagnosis
    logs = [view.log for view in views]
    return replace(diagnosis, remaining_s=find_remaining(logs, evidence.run_s, resumed=diagnosis.resumed))


def _of_completed(evidence: Evidence, signatures: SignatureSet | None) -> Diagnosis:
    """A success, unless the output ends with an error: that is neither a success nor a failure."""
    suspect = any(may_end_in_error(tail.text) for tail in evidence.logs)
    logs = tuple(map(read_log, evidence.logs)) if suspect else ()
    end = find_error_at_end(logs)
    if end is None:
        return _plain(SUCCESS, "slurm.completed", 0.99, _slurm_cites(evidence))
    log = logs[end.log]
    if end.nan:
        shown = _cite(log.name, log.numbers[end.start], log.rows[end.start])
        error = _plain("model_diverged", "log.nan_at_end", 0.9, (shown,))
    else:
        last = cut_rows(log, end.start)
        marks = find_marks(last, 0, signatures or default_signatures())
        view = LogView(log=last, marks=marks, progress=LogProgress(rows=(), nan=(), finished=()))
        root = find_root((view,))
        died = _cite(log.name, log.numbers[end.row], log.rows[end.row])
        error = _of_mark(root, (view,)) if root else _plain("traceback_from_crash", "python.exception", 0.75, (died,))
    judged = _plain(COMPLETED_WITH_ERROR, error.signature, error.confidence, (*error.evidence, *_slurm_cites(evidence)))
    judged = replace(judged, domain=error.domain, advice=error.advice, error=error.category)
    views = tuple(LogView(log=one, marks=(), progress=LogProgress(rows=(), nan=(), finished=())) for one in logs)
    return _with_steps(_in_context(judged, views), views)


def classifier(site: str) -> Callable[[Evidence], Diagnosis]:
    """`classify` with the signatures of the site's own file beside the shipped ones; "" for none.

    The shipped ones alone are loaded with the first failure: a pre-run that passes does without. Raises ConfigError
    naming file, signature and reason.
    """
    return partial(classify, signatures=signatures_with(site) if site else None)


def _with_hooks(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """What the nodes' hooks reported agrees with a fault of the node or the GPU; it never makes one."""
    if diagnosis.category not in _GPU_SIDE | {"node_failure"} or diagnosis.signature == "hook.refused":
        return diagnosis
    told = [line for line in evidence.hooks if _HOOK_TELLS.search(line)]
    lines = tuple(_cite("hook", 0, line) for line in told[:_HOOK_LINES])
    return replace(diagnosis, evidence=(*diagnosis.evidence, *(replace(line, role="support") for line in lines)))


def _in_context(diagnosis: Diagnosis, views: tuple[LogView, ...]) -> Diagnosis:
    logs = [view.log for view in views]
    diagnosis = replace(diagnosis, evidence=tuple(in_context(cited, logs) for cited in diagnosis.evidence))
    place = own_place(diagnosis.evidence) if _OF_TRACEBACK in (diagnosis.category, diagnosis.error) else None
    raised = _RAISED.match(strip_prefix(diagnosis.evidence[0].text)) if place else None
    if place is None or raised is None:
        return diagnosis
    what = f"the key {raised[2]} does not exist" if raised[1] == "KeyError" and raised[2] else raised[1]
    return replace(diagnosis, advice=f"Line {place[1]} of {printable(place[0].rpartition('/')[2])}: {printable(what)}.")


def _with_steps(diagnosis: Diagnosis, views: tuple[LogView, ...]) -> Diagnosis:
    steps = last_progress([view.log for view in views])
    return replace(diagnosis, step=steps.step, resumed=steps.resumed, checkpoint_step=steps.checkpoint_step)


def _view(log: LogRows, index: int, signatures: SignatureSet) -> LogView:
    marks = find_marks(log, index, signatures)
    first = next((mark.row for mark in marks if mark.role == "root"), max(0, len(log.rows) - _END_ROWS))
    return LogView(log=log, marks=marks, progress=find_progress(log, after=first))


def _judge(evidence: Evidence, views: tuple[LogView, ...], kernel: KernelCause | None) -> Diagnosis:
    root = find_root(views)
    said_more = root is not None and root.weight >= DECISIVE
    word = slurm_state.decisive_state(evidence)
    if word is not None and not (word.category == "cancelled" and said_more):
        line = _confirming(views, word.category)
        return _of_word(word, evidence, views, line)
    if root is not None and root.weight >= DECISIVE:
        return _of_mark(root, views)
    if kernel is not None and _kernel_wins(kernel, root):
        return _of_kernel(kernel, root, views)
    if _host_memory(evidence, root):
        return _plain("cpu_oom", "cgroup.oom_kill", 0.95, (_cite("slurm", 0, _memory_text(evidence)),))
    if root is not None and (diverged := _diverged(root, views)):
        return diverged
    if root is not None and not (root.weight < _SUMMARY and _died_of_signal(evidence)):
        return _of_mark(root, views)
    return _without_root(evidence, views)


def _died_of_signal(evidence: Evidence) -> bool:
    """Whether the exit code tells of a crash: more than a line that is only a hint does."""
    word = slurm_state.exit_word(evidence)
    return word is not None and word.category in ("core_dump", "invalid_memory_access")


def _confirming(views: tuple[LogView, ...], category: str) -> LogMatch | None:
    marks = (mark for view in views for mark in view.marks if mark.category == category)
    return max(marks, key=lambda mark: mark.weight, default=None)


def _kernel_wins(kernel: KernelCause, root: LogMatch | None) -> bool:
    if root is None or root.weight < ORDINARY:
        return True
    if kernel.rank <= 1:
        return root.category in AMBIGUOUS and not _BUG.search(root.text)
    if kernel.rank == 2:
        return root.category in _GPU_SIDE
    vague = root.category in ("nccl_error", "core_dump", "cuda_failure") and bool(_VAGUE.search(root.text))
    return vague or (root.weight < STRONG and root.category in ("nccl_error", "core_dump"))


def _host_memory(evidence: Evidence, root: LogMatch | None) -> bool:
    if root is not None and root.weight >= STRONG and root.category not in AMBIGUOUS:
        return False
    if evidence.oom_kills:
        return True
    killed = evidence.signal == 9 or evidence.exit_code == 137
    peak, limit = evidence.mem_peak_mib, evidence.mem_limit_mib
    return bool(killed and peak and limit and peak >= 0.98 * limit)


def _memory_text(evidence: Evidence) -> str:
    return f"{evidence.oom_kills or 0} OOM kills, peak {evidence.mem_peak_mib} MiB of {evidence.mem_limit_mib} MiB"


def _diverged(root: LogMatch, views: tuple[LogView, ...]) -> Diagnosis | None:
    """An assertion or device-side assert that follows a visible NaN is the NaN's."""
    view = views[root.log]
    first = view.progress.nan_before(root.row)
    if first is None or root.category not in ("traceback_from_crash", "cuda_failure", "semantic_error"):
        return None
    if not _NAN_CRASH.search(root.text):
        return None
    shown = _cite(view.log.name, view.log.numbers[first], view.log.rows[first])
    crash = replace(_cite_mark(root, views), role="cascade")
    return _plain("model_diverged", "log.nan_before_crash", 0.85, (shown, crash))


def _without_root(evidence: Evidence, views: tuple[LogView, ...]) -> Diagnosis:
    if slurm_state.completed(evidence) and any(view.progress.finished for view in views):
        return _plain(SUCCESS, "slurm.completed", 0.7, _slurm_cites(evidence))
    for view in views:
        rows, nan = view.progress.rows, view.progress.nan
        if rows and nan and nan[-1] >= rows[-1]:
            line = _cite(view.log.name, view.log.numbers[nan[-1]], view.log.rows[nan[-1]])
            return _plain("model_diverged", "log.nan_at_end", 0.5, (line,))
    if refused := next((line for line in evidence.hooks if _HOOK_FAILED.search(line)), None):
        return _plain("node_failure", "hook.refused", 0.6, (_cite("hook", 0, refused),))
    if word := slurm_state.exit_word(evidence):
        return _plain(word.category, word.signature, 0.5, (_cite("slurm", 0, word.text),))
    return _plain(NO_SIGNATURE, "", 0.2, _last_lines(views) or (*_slurm_cites(evidence), *_unread(evidence)))


def _of_word(
    word: slurm_state.SlurmCause, evidence: Evidence, views: tuple[LogView, ...], line: LogMatch | None
) -> Diagnosis:
    cites = [_cite("slurm", 0, word.text)]
    if line is not None:
        cites.append(replace(_cite_mark(line, views), role="support"))
    return _plain(word.category, word.signature, 0.98, tuple(cites))


def _of_kernel(kernel: KernelCause, root: LogMatch | None, views: tuple[LogView, ...]) -> Diagnosis:
    source = f"{kernel.source}:{kernel.node}" if kernel.node else kernel.source
    cites = [_cite(source, kernel.line, kernel.text)]
    if root is not None:
        cites.append(replace(_cite_mark(root, views), role="cascade"))
    found = _plain(kernel.category, kernel.signature, 0.97 if kernel.rank <= 1 else 0.85, tuple(cites))
    advice = kernel.advice or f"{found.advice} The {_SAYS[kernel.source]}: {kernel.meaning}."
    return replace(found, advice=advice, decision=kernel.decision or found.decision)


def _of_mark(root: LogMatch, views: tuple[LogView, ...]) -> Diagnosis:
    cites = [_cite_mark(root, views), *_cascades(root, views)]
    found = _plain(root.category, root.signature, _confidence(root.weight), tuple(cites))
    return replace(
        found,
        decision=root.decision or found.decision,
        advice=root.advice or specific(root.category, root.text) or found.advice,
        input_path=root.input_path if root.category == "incorrect_inputs" else "",
    )


def _cascades(root: LogMatch, views: tuple[LogView, ...]) -> Iterable[Citation]:
    """The first line of each consequence that the log names, one per signature."""
    seen = {root.signature}
    for mark in (mark for view in views for mark in view.marks):
        later = mark.log != root.log or mark.row > root.row or mark.category in SPEAKS_OF_PEERS
        if later and mark.role in ("cascade", "root") and mark.signature not in seen and len(seen) < _CITED:
            seen.add(mark.signature)
            yield replace(_cite_mark(mark, views), role="cascade")


def _with_node(diagnosis: Diagnosis, evidence: Evidence, kernel: KernelCause | None) -> Diagnosis:
    if kernel is not None and kernel.node and (kernel.conclusive or diagnosis.signature == kernel.signature):
        return replace(diagnosis, node=kernel.node, conclusive=kernel.conclusive)
    if kernel is not None and kernel.conclusive:
        return replace(diagnosis, conclusive=True)
    slurm_says = diagnosis.signature in ("slurm.state_node_fail", "slurm.reason_node_down", "slurm.state_boot_fail")
    if slurm_says and len(evidence.nodes) == 1:
        return replace(diagnosis, node=evidence.nodes[0])
    return diagnosis


def _plain(category: str, signature: str, confidence: float, evidence: tuple[Citation, ...]) -> Diagnosis:
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


def _confidence(weight: int) -> float:
    steps = ((DECISIVE, 0.98), (STRONG, 0.93), (50, 0.85), (ORDINARY, 0.75), (30, 0.5))
    return next((confidence for least, confidence in steps if weight >= least), 0.35)


def _cite(source: str, line: int, text: str) -> Citation:
    return Citation(source=source, line=line, text=text.strip()[:_TEXT_CAP])


def _cite_mark(mark: LogMatch, views: tuple[LogView, ...]) -> Citation:
    return _cite(views[mark.log].log.name, mark.number, mark.text)


def _slurm_cites(evidence: Evidence) -> tuple[Citation, ...]:
    if not evidence.state and evidence.exit_code is None:
        return ()
    ending = f"State {evidence.state or 'unknown'}, ExitCode {evidence.exit_code or 0}:{evidence.signal or 0}"
    derived, signal = evidence.derived_exit_code or 0, evidence.derived_signal or 0
    if (derived, signal) not in ((0, 0), (evidence.exit_code or 0, evidence.signal or 0)):
        ending += f"; the worst of its steps {derived}:{signal} (DerivedExitCode)"
    return (_cite("slurm", 0, ending),)


def _unread(evidence: Evidence) -> tuple[Citation, ...]:
    """Why nothing is known of what the job wrote."""
    told = next((line for line in evidence.hooks if UNREAD in line), None)
    return () if told is None else (replace(_cite("hook", 0, told), role="support"),)


def _last_lines(views: tuple[LogView, ...]) -> tuple[Citation, ...]:
    """The last line that is not blank, so that a person can go on from there."""
    for view in views:
        for row in range(len(view.log.rows) - 1, -1, -1):
            if view.log.rows[row].strip():
                return (_cite(view.log.name, view.log.numbers[row], view.log.rows[row]),)
    return ()
