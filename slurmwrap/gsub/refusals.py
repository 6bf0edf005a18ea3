"""Find reasons to refuse a submission: blocked inputs, repeated failures, impossible requests; warn about incidents.

Refusals are returned, not raised: --force overrides them, and the overridden ones are recorded.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from re import sub
from time import localtime, strftime

from slurmwrap.digest import sha256_hex
from slurmwrap.errors import RefusedError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.hostlist import expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.model.decision import BlockedInput
    from slurmwrap.model.past_failure import PastFailure
    from slurmwrap.model.placement_plan import PlacementPlan
    from slurmwrap.protocols import OpenIncident, Published
    from slurmwrap.sbatch.job_request import JobRequest


_ALL_USERS = -1  # uid of a block that applies to all users
# Number of unchanged failures after which a job is refused. Microsoft's Philly cluster retried blindly; two failures of
# the same job are proof enough.
_FAILURES_TO_REFUSE = 2
# Flags in a node's state that mean that nodes may join while Slurm runs, scontrol(1).
_MAY_JOIN = frozenset(("CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "FUTURE"))
_MAX_ERRORS_SHOWN = 2  # maximum number of different errors in a message


def find_blocked_inputs(inputs: Sequence[str], context: SubmitContext) -> list[RefusedError]:
    """Return one refusal per input whose content is blocked for this user or for all users."""
    blocked = _list_blocks_in_force(context)
    if not blocked:
        return []
    found = [(path, blocked.get(context.trials.digest(path) or "")) for path in inputs]
    return [_make_block_refusal(path, block, context) for path, block in found if block is not None]


def find_repeated_failures(
    request: JobRequest, inputs: Sequence[str], context: SubmitContext, mark: str
) -> list[RefusedError]:
    """Return a refusal if the same job failed twice and nothing has changed since that could have fixed it.

    `mark`: the job's fingerprint, that is its script, code, arguments, options and environment.
    """
    failures = context.memory.failures(sha256_hex(request.script.content), mark)
    if len(failures) >= _FAILURES_TO_REFUSE:
        failures = select_unfixed_failures(failures, _build_surroundings(request, inputs, context))
    if len(failures) < _FAILURES_TO_REFUSE:
        return []
    return [
        RefusedError(
            f"this script failed {_format_times(len(failures))}, unchanged, with: {_format_errors(failures)}",
            hint="Fix it, or submit it anyway with --force.",
        )
    ]


def find_impossible_request(request: JobRequest, snapshot: Snapshot) -> list[RefusedError]:
    """Return a refusal if the job requests more nodes than each of its partitions has, including drained nodes.

    Slurm accepts such a job and lets it pend forever (EnforcePartLimits=NO, slurm.conf(5)). There is no refusal if
    nodes may join while Slurm runs (cloud or dynamic nodes).
    """
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


def _build_surroundings(request: JobRequest, inputs: Sequence[str], context: SubmitContext) -> Surroundings:

    return Surroundings(
        script=request.script.content.decode("utf-8", "replace"),
        chdir=request.chdir,
        environ=context.environ,
        inputs=inputs,
        code=tuple(context.trials.entry_files(request)),
        changed_at=context.trials.changed_at,
        files_in=context.trials.files_in,
    )


def _format_times(count: int) -> str:
    return "twice" if count == _FAILURES_TO_REFUSE else f"{count} times"


def _format_errors(failures: Sequence[PastFailure]) -> str:
    """Format each different error once, newest first, with the newest job that ended with it."""
    newest: dict[str, PastFailure] = {}
    for failure in failures:
        newest.setdefault(sub(r"^(?:srun|slurmstepd|sbatch): (?:error|fatal): ", "", failure.error), failure)
    errors = [
        f"{error.rstrip('.')} ({'pre-run ' if one.prerun else ''}job {one.job_id})" for error, one in newest.items()
    ]
    return "; before that: ".join(errors[:_MAX_ERRORS_SHOWN])


def _list_blocks_in_force(context: SubmitContext) -> dict[str, BlockedInput]:
    """Return digest → block. The user's own block, which knows the log line, replaces the published one."""
    # A block that rests on one user's log applies to that user only.
    everyone = [b for b in context.published.blocked if b.uid in (_ALL_USERS, context.uid)]
    known = [*everyone, *context.memory.blocked_inputs()]
    return {b.digest: b for b in sorted(known, key=lambda b: (b.uid == context.uid, bool(b.path)))}


def _make_block_refusal(path: str, blocked: BlockedInput, context: SubmitContext) -> RefusedError:
    job = f"slurmwrap why {blocked.job_id} shows the line; " if blocked.uid == context.uid and blocked.job_id else ""
    return RefusedError(
        f"input {path} is blocked: {_format_block_evidence(blocked, context)}",
        hint=f"{job}fix or replace the file (a changed file is no longer blocked), or submit anyway with --force",
    )


def _format_block_evidence(blocked: BlockedInput, context: SubmitContext) -> str:
    """Format the reason of a block, the job that caused it, and its time."""
    when = strftime("%Y-%m-%d %H:%M", localtime(blocked.at))
    if blocked.uid != _ALL_USERS:
        who = f"your job {blocked.job_id} failed of it on {when}" if blocked.job_id else f"by yourself on {when}"
    elif blocked.job_id:
        who = f"for all users, since job {blocked.job_id} on {when}"
    else:
        who = f"for all users, by an administrator on {when}"
    generic = not blocked.reason or blocked.reason == f"it made job {blocked.job_id} fail"
    return who if generic else f"{blocked.reason} ({who})"


# Check whether the cause of an earlier failure may have been fixed. Only if not, the same script will fail again.
#
# Every change that may have fixed the failure counts, and so does every doubt: a job that is wrongly refused costs its
# user more than a job that fails a third time. This part is pure; the caller passes in the functions that read files.

# Categories that a node, a driver or a job on the same node may have caused: another run may succeed.
_NODE_CATEGORIES = frozenset(("core_dump", "invalid_memory_access", "cuda_failure"))
_ENVIRONMENT_CATEGORIES = frozenset(("import_error", "cannot_load_libs", "cuda_version_mismatch"))
_MISSING = re.compile(r"No such file|does not exist|FileNotFoundError|not found|cannot find", re.IGNORECASE)
_NO_COMMAND = re.compile(r"command not found|execve\(\)|: not found", re.IGNORECASE)
_QUOTED = re.compile(r"""['"]([^'"\n]{1,500})['"]""")
_ABSOLUTE = re.compile(r"(?<![\w/])/[\w.@%+=~-]+(?:/[\w.@%+=~-]+)*")
# Commands in a script that choose the job's packages in a way that the caller's environment does not show.
_PACKAGE_COMMANDS = re.compile(
    r"(?m)^[^#\n]*\b(?:module|ml|conda|mamba|micromamba|spack|guix|apptainer|singularity|podman|docker|enroot|pixi|uv)\b"
)
_PREFIX = re.compile(r"([\w/.~${}-]+)/bin/(?:activate|python[\w.]*)\b")
_WRITTEN_BY_JOBS = (".out", ".err", ".log")
_MAX_FILES = 500  # maximum number of files examined in one directory
# Tolerance, because Slurm's times are whole seconds.
_TIME_TOLERANCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the outcome of a job may depend on besides its fingerprint, and the functions to examine it."""

    script: str
    chdir: str
    environ: Mapping[str, str]
    inputs: Sequence[str]  # files that the job names
    code: Sequence[str]  # paths of its programs
    changed_at: Callable[[str], float | None]  # newer of mtime and ctime, Unix seconds; None: the file does not exist
    files_in: Callable[[str], Iterable[str]]  # names of the files in a directory; () if it cannot be read


def select_unfixed_failures(failures: Sequence[PastFailure], around: Surroundings) -> tuple[PastFailure, ...]:
    """Return the failures whose cause no later change can have fixed."""
    return tuple(failure for failure in failures if not _may_be_fixed(failure, around))


def _may_be_fixed(failure: PastFailure, around: Surroundings) -> bool:
    # First collect the paths that the failure's messages name. Then look for a change since the failure: of these
    # paths, of the packages (if the failure concerns them), of the inputs, and of files next to the code.
    if failure.node or failure.category in _NODE_CATEGORIES:
        return True
    texts = [c.text for c in failure.evidence if c.role != "cascade"]
    text = "\n".join([failure.reason, *texts] if failure.prerun else texts)
    blamed = [posixpath.join(around.chdir, path) for path in _find_named_paths(failure.input_path, text)]
    if failure.category == "permission_error":
        if not blamed:
            # The permission of a token or a licence cannot be examined, so it may have changed.
            return True
        blamed += [posixpath.dirname(path) for path in blamed]
    missing = bool(_MISSING.search(text))
    if any(_has_appeared(path, missing, around) or _has_changed(path, failure.at, around) for path in blamed):
        return True
    needs_packages = failure.category in _ENVIRONMENT_CATEGORIES or bool(_NO_COMMAND.search(text))
    if needs_packages and _may_packages_have_changed(failure.at, around):
        return True
    return any(_has_changed(path, failure.at, around) for path in (*around.inputs, *_list_neighbouring_files(around)))


def _find_named_paths(first: str, message: str) -> Iterator[str]:
    """Yield what the failure's message names and may be a path. A false path only makes refusals rarer."""
    if first:
        yield first
    yield from _ABSOLUTE.findall(message)
    yield from (text for text in _QUOTED.findall(message) if "\0" not in text and ("/" in text or "." in text))


def _has_appeared(path: str, missing: bool, around: Surroundings) -> bool:
    """Return whether a missing path exists now. The job's own programs do not count: every message names them."""
    return missing and path not in around.code and _is_specific(path, around) and around.changed_at(path) is not None


def _is_specific(path: str, around: Surroundings) -> bool:
    """Return False for parents of the working directory and for system paths, which messages mention by the way."""
    if around.chdir == path or around.chdir.startswith(path.rstrip("/") + "/"):
        return False
    return not path.startswith(("/usr/", "/bin/", "/lib", "/opt/", "/var/spool/", "/proc/", "/dev/"))


def _has_changed(path: str, since: float, around: Surroundings) -> bool:
    at = around.changed_at(path)
    return at is not None and at > since + _TIME_TOLERANCE_S


def _may_packages_have_changed(since: float, around: Surroundings) -> bool:
    """Return True if it is unknown which packages the job uses, or if a directory of its packages has changed."""
    if _PACKAGE_COMMANDS.search(around.script):
        return True
    home = around.environ.get("HOME", "")
    prefixes = [around.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    for found in _PREFIX.findall(around.script):
        expanded = re.sub(r"^~(?=/)|\$\{?HOME\}?", lambda _: home, found)
        if "$" in expanded:
            return True
        prefixes.append(posixpath.join(around.chdir, expanded))
    path = [folder for folder in around.environ.get("PATH", "").split(":") if folder.startswith("/")]
    prefixes += [posixpath.dirname(folder) for folder in path if posixpath.basename(folder) == "bin"]
    libraries = [folder for folder in around.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders = [*path, *libraries, *_list_package_folders([*prefixes, f"{home}/.local"], around)]
    return any(_has_changed(folder, since, around) for folder in dict.fromkeys(folders))


def _list_package_folders(prefixes: Sequence[str], around: Surroundings) -> Iterator[str]:
    for prefix in dict.fromkeys(one for one in prefixes if one):
        for name in around.files_in(f"{prefix}/lib"):
            if name.startswith("python3"):
                yield f"{prefix}/lib/{name}/site-packages"
                yield f"{prefix}/lib/{name}/dist-packages"


def _list_neighbouring_files(around: Surroundings) -> Iterator[str]:
    """Yield files in the working directory and next to the job's programs, which the code may read."""
    for folder in dict.fromkeys([around.chdir, *(posixpath.dirname(path) for path in around.code if path[:1] == "/")]):
        names = [name for name in around.files_in(folder) if not name.startswith(".")]
        yield from (f"{folder}/{name}" for name in names[:_MAX_FILES] if not name.endswith(_WRITTEN_BY_JOBS))


# Find the open incidents that may affect a job that is about to be submitted. They cause a warning, never a refusal.
#
# Paths are compared as they are written: resolving a link on a file system that hangs would hang gsub too.

# The reconciler publishes every five minutes. Older data comes from a reconciler that no longer runs and is ignored.
STALE_S = 1800.0


def find_incident_warnings(
    published: Published,
    request: JobRequest,
    plan: PlacementPlan,
    inputs: Sequence[str],
    snapshot: Snapshot,
    now: float,
) -> tuple[Finding, ...]:
    """Return one warning per open incident that may affect the job."""
    if now > published.at + STALE_S:
        return ()
    hits = (one for one in published.incidents if _may_affect(one, request, plan, inputs, snapshot))
    return tuple(Finding(severity=Severity.WARNING, message=_describe_incident(one, now)) for one in hits)


def _may_affect(
    one: OpenIncident, request: JobRequest, plan: PlacementPlan, inputs: Sequence[str], snapshot: Snapshot
) -> bool:
    kind, _, what = one.scope.partition(" ")
    if kind == "path":
        return bool(what) and any(path == what or path.startswith(f"{what}/") for path in _list_paths(request, inputs))
    if kind == "switch":
        return _may_be_below(what, request, plan, snapshot)
    return kind in ("cluster", "host")


def _list_paths(request: JobRequest, inputs: Sequence[str]) -> set[str]:
    named = (request.chdir, request.script.path or request.chdir, *inputs)
    return {posixpath.normpath(posixpath.join(request.chdir, path)) for path in named}


def _may_be_below(switch: str, request: JobRequest, plan: PlacementPlan, snapshot: Snapshot) -> bool:
    """Return whether the job may get nodes below `switch`: by its --nodelist, else by its candidate nodes.

    If neither is known, any node of its partitions below the switch counts.
    """
    leaf = next((one for one in snapshot.topology.leaves if one.name == switch), None)
    below = set(leaf.nodes) if leaf is not None else set()
    wanted = set((request.value("partition") or snapshot.default_partition).split(","))
    if below and any(wanted):
        below = {node.name for node in snapshot.nodes if node.name in below and wanted & set(node.partitions)}
    below -= _expand_node_option(request, "exclude")
    asked = _expand_node_option(request, "nodelist") or set(plan.candidates)
    return bool(below & asked) if asked else bool(below)


def _expand_node_option(request: JobRequest, option: str) -> set[str]:
    try:
        return set(expand(request.value(option) or ""))
    except ValueError:
        # The name of a file with node names, or a value that sbatch will refuse.
        return set()


def _describe_incident(one: OpenIncident, now: float) -> str:
    kind, _, what = one.scope.partition(" ")
    where = {"path": f" on {what}", "switch": f" below switch {what}", "host": " with a host outside"}.get(kind, "")
    clock = "%H:%M" if now - one.since < 12 * 3600 else "%Y-%m-%d %H:%M"
    struck = f"{one.jobs} job{'s' * (one.jobs != 1)} of {one.users} user{'s' * (one.users != 1)}"
    since = strftime(clock, localtime(one.since))
    return f"{one.category}{where} since {since} ({struck}): the job may fail the same way; it is submitted anyway"
