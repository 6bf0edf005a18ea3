"""Find the call of exit by which a program or the batch script ended without an error message. Pure but for `read`.

The pre-run records each call of Python's sys.exit, exit and quit with a code other than 0 (inject/slurmwrap_step.py),
and each `exit` of bash (shims/bash_env.sh). Such an ending is the job's own if the check before it does not depend on
the size of the job.
"""

from __future__ import annotations

import re

from slurmwrap.model.trial_result import ExitCall, TrialResult
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.python_traceback import Frame, TracebackSummary
from slurmwrap.prerun.verdict.single_gpu_limits import Read

# Rows of the output that may say that the size of the job is the reason.
_LAST_ROWS = 5
# Rows before `exit` in which the condition that leads to it begins.
_CONDITION_ROWS = 12
_CONDITION_BEGINS = re.compile(r"\s*(?:if|elif|case)\b")
# Tests of files and texts, which give the same result in the real job.
_FILE_OR_TEXT_TEST = re.compile(r"(?:\[\[?|\btest)\s+(?:!\s+)?(?:-[defrsxzn]\b|\"?\$\{?\w+[^\]]{0,80}?\s(?:==?|!=)\s)")
_SIZE_WORDS = re.compile(
    r"SLURM_(?:N|J|STEP|GPU|CPU|TASK|MEM|PROC|LOCAL)|WORLD|RANK|NTASKS|NODES?\b|GPUS?\b|CUDA_VISIBLE|nvidia-smi|nproc|free\b|df\b"
    r"|hostname|\$\?|-(?:lt|gt|le|ge)\b|PRERUN",
    re.IGNORECASE,
)

# What a program prints that ends because of the size of the job.
_SPEAKS_OF_SIZE = re.compile(
    r"\b(?:needs?|requires?|expect(?:s|ed)?|at least|only|must|should|too (?:few|small)|not enough|more|multiple|found"
    r"|got|available)\b.{0,60}\b(?:gpus?|nodes?|ranks?|processes|tasks?|world|devices?|cpus?|memory)\b"
    r"|world[ _]?size|ntasks",
    re.IGNORECASE,
)


def find_silent_exit(spec: TrialSpec, result: TrialResult, read: Read) -> TracebackSummary | None:
    """Return the exit that ended the script as if it were the end of a traceback; None if it is not known."""
    if result.layer != "exit" or not result.exit_code or not result.exits:
        return None
    call = result.exits[-1]
    code = _find_code(call, spec, read)
    printed = [row.strip() for row in result.logs[0].text.splitlines() if row.strip()] if result.logs else []
    if code is None or _SPEAKS_OF_SIZE.search("\n".join(printed[-_LAST_ROWS:])):
        return None
    said = f" after {printed[-1][:120]!r}" if printed else ""
    name = spec.script_name if call.in_bash and call.file in _list_script_files(spec) else call.file
    frame = Frame(file=name or call.file, line=call.line, code=code)
    if not frame.own:
        # A library exits after a message of its own: argparse, click.
        return None
    return TracebackSummary(
        kind="SystemExit", message=f"exit code {result.exit_code}{said}", own=frame, frames=(frame,)
    )


def _find_code(call: ExitCall, spec: TrialSpec, read: Read) -> str | None:
    """Return the source line of the call; None if it cannot be read or its condition may depend on the trial."""
    rows = (read(call.file) or "").splitlines()
    if not 0 < call.line <= len(rows):
        return None
    code = rows[call.line - 1].strip()
    if not call.in_bash:
        return code
    first = next(
        (
            at
            for at in range(call.line - 1, max(-1, call.line - 1 - _CONDITION_ROWS), -1)
            if _CONDITION_BEGINS.match(rows[at])
        ),
        call.line - 1,
    )
    condition = code if re.search(r"\|\||&&", code) else "\n".join(rows[first : call.line])
    return code if _FILE_OR_TEXT_TEST.search(condition) and not _SIZE_WORDS.search(condition) else None


def _list_script_files(spec: TrialSpec) -> tuple[str, ...]:
    name = spec.script.rpartition("/")[2]
    return (spec.script, f"{spec.trial_dir}/redirected/{name}")
