"""What a submission is refused for before anything is asked of Slurm: blocked inputs, and the same failure again.

Refusals are values: --force overrides them, and what it overrode is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import localtime, strftime

from slurmwrap.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.retry.blocked import BlockedInput
    from slurmwrap.submit.desk import Desk

_EVERYBODY = -1
_TIMES = 2  # Philly retried blindly; two failures of the very same are proof enough


def blocked_inputs(inputs: Sequence[str], desk: Desk) -> list[RefusedError]:
    """One refusal per input whose content is blocked for this user or for everybody."""
    blocked = _in_force(desk)
    if not blocked:
        return []
    found = [(path, blocked.get(desk.trials.digest(path) or "")) for path in inputs]
    return [_blocked(path, block, desk) for path, block in found if block is not None]


def repeated(failures: Sequence[str]) -> list[RefusedError]:
    """A refusal when the very same script, code and arguments failed twice. `failures`: newest first."""
    if len(failures) < _TIMES:
        return []
    return [
        RefusedError(
            f"this very script failed {len(failures)} times, unchanged: {failures[0]}; before that: {failures[1]}",
            hint="change the script, its code or its arguments, or submit anyway with --force",
        )
    ]


def _in_force(desk: Desk) -> dict[str, BlockedInput]:
    """By digest; the user's own word, which knows the line, before what everybody sees."""
    everyone = [b for b in desk.published.blocked if b.uid in (_EVERYBODY, desk.uid)]  # one user's log binds him alone
    known = [*everyone, *desk.memory.blocked_inputs()]
    return {b.digest: b for b in sorted(known, key=lambda b: (b.uid == desk.uid, bool(b.path)))}


def _blocked(path: str, block: BlockedInput, desk: Desk) -> RefusedError:
    job = f"slurmwrap why {block.job_id} shows the line; " if block.uid == desk.uid and block.job_id else ""
    return RefusedError(
        f"input {path} is blocked: {_evidence(block, desk)}",
        hint=f"{job}fix or replace the file (a changed file is no longer blocked), or submit anyway with --force",
    )


def _evidence(block: BlockedInput, desk: Desk) -> str:
    """What is known of it, by whose job, and since when."""
    when = strftime("%Y-%m-%d %H:%M", localtime(block.at))
    if block.uid != _EVERYBODY:
        who = f"your job {block.job_id} failed of it on {when}" if block.job_id else f"by yourself on {when}"
    elif block.job_id:
        who = f"for all users, since job {block.job_id} on {when}"
    else:
        who = f"for all users, by an administrator on {when}"
    generic = not block.reason or block.reason == f"it made job {block.job_id} fail"
    return who if generic else f"{block.reason} ({who})"
