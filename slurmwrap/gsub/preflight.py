"""What a submission is refused for before anything is asked of Slurm: blocked inputs, and the same failure again.

Refusals are values: --force overrides them, and what it overrode is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from re import sub
from time import localtime, strftime

from slurmwrap.digest import sha256_hex
from slurmwrap.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.gsub.unchanged import Surroundings
    from slurmwrap.model.blocked_input import BlockedInput
    from slurmwrap.model.node import Snapshot
    from slurmwrap.model.past_failure import PastFailure
    from slurmwrap.sbatch.request import JobRequest

_EVERYBODY = -1
_TIMES = 2  # Philly retried blindly; two failures of the very same are proof enough
_MAY_JOIN = frozenset(("CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "FUTURE"))  # node state flags, scontrol(1)
_SHOWN = 2  # different errors


def find_blocked_inputs(inputs: Sequence[str], desk: SubmitContext) -> list[RefusedError]:
    """One refusal per input whose content is blocked for this user or for everybody."""
    blocked = _list_blocks_in_force(desk)
    if not blocked:
        return []
    found = [(path, blocked.get(desk.trials.digest(path) or "")) for path in inputs]
    return [_make_block_refusal(path, block, desk) for path, block in found if block is not None]


def find_repeated_failures(
    request: JobRequest, inputs: Sequence[str], desk: SubmitContext, mark: str
) -> list[RefusedError]:
    """A refusal when the very same failed twice, and nothing changed since that could have fixed it.

    `mark`: its fingerprint: the same script, code, arguments, options and environment.
    """
    failures = desk.memory.failures(sha256_hex(request.script.content), mark)
    if len(failures) >= _TIMES:
        from slurmwrap.gsub.unchanged import select_unfixed_failures

        failures = select_unfixed_failures(failures, _build_surroundings(request, inputs, desk))
    if len(failures) < _TIMES:
        return []
    return [
        RefusedError(
            f"this script failed {_format_times(len(failures))}, unchanged, with: {_format_errors(failures)}",
            hint="Fix it, or submit it anyway with --force.",
        )
    ]


def find_impossible_request(request: JobRequest, snapshot: Snapshot) -> list[RefusedError]:
    """A refusal for more nodes than each of the job's partitions has, drained ones and those of a cloud counted: Slurm
    takes such a job and lets it wait for ever (EnforcePartLimits=NO, slurm.conf(5)). Where nodes may join while Slurm
    runs, nothing is certain."""
    asked = request.shape.nodes or 0
    names = (request.value("partition") or snapshot.default_partition).split(",")
    sizes = {p.name: p.total_nodes for p in snapshot.partitions if p.name in names}
    elsewhere = request.hetjob or any(request.setting(option) for option in ("reservation", "cluster-constraint"))
    if elsewhere or set(names) != set(sizes) or any(n.flags & _MAY_JOIN for n in snapshot.nodes):
        return []
    if not all(size and asked > size for size in sizes.values()):
        return []
    name, most = max(((name, size or 0) for name, size in sizes.items()), key=lambda pair: pair[1])
    return [
        RefusedError(
            f"{asked} nodes: partition {name} has {most}, so the job could never start",
            hint=f"Ask for at most {most} nodes (--nodes={most}), or submit it anyway with --force.",
        )
    ]


def _build_surroundings(request: JobRequest, inputs: Sequence[str], desk: SubmitContext) -> Surroundings:
    from slurmwrap.gsub.unchanged import Surroundings

    return Surroundings(
        script=request.script.content.decode("utf-8", "replace"),
        chdir=request.chdir,
        environ=desk.environ,
        inputs=inputs,
        code=tuple(desk.trials.entry_files(request)),
        changed_at=desk.trials.changed_at,
        files_in=desk.trials.files_in,
    )


def _format_times(count: int) -> str:
    return "twice" if count == _TIMES else f"{count} times"


def _format_errors(failures: Sequence[PastFailure]) -> str:
    """Each different error once, newest first, with the newest job that ended so."""
    newest: dict[str, PastFailure] = {}
    for failure in failures:
        newest.setdefault(sub(r"^(?:srun|slurmstepd|sbatch): (?:error|fatal): ", "", failure.error), failure)
    told = [
        f"{error.rstrip('.')} ({'pre-run ' if one.prerun else ''}job {one.job_id})" for error, one in newest.items()
    ]
    return "; before that: ".join(told[:_SHOWN])


def _list_blocks_in_force(desk: SubmitContext) -> dict[str, BlockedInput]:
    """By digest; the user's own claim, which knows the line, before what everybody sees."""
    everyone = [b for b in desk.published.blocked if b.uid in (_EVERYBODY, desk.uid)]  # one user's log binds them alone
    known = [*everyone, *desk.memory.blocked_inputs()]
    return {b.digest: b for b in sorted(known, key=lambda b: (b.uid == desk.uid, bool(b.path)))}


def _make_block_refusal(path: str, block: BlockedInput, desk: SubmitContext) -> RefusedError:
    job = f"slurmwrap why {block.job_id} shows the line; " if block.uid == desk.uid and block.job_id else ""
    return RefusedError(
        f"input {path} is blocked: {_format_block_evidence(block, desk)}",
        hint=f"{job}fix or replace the file (a changed file is no longer blocked), or submit anyway with --force",
    )


def _format_block_evidence(block: BlockedInput, desk: SubmitContext) -> str:
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
