"""Rules by which a call goes to sbatch unchanged, each with its reason in one sentence. Pure.

There are three stages, the cheapest first: the caller's environment, then the call itself, then the configuration of
the site and the user, which is read only if the first two stages do not pass the call on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from slurmwrap.sbatch.script_directives import has_foreign_directives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Submit
    from slurmwrap.sbatch.job_request import GsubOptions, JobRequest


NO_GPU = "The job asks for no GPU."
_THRESHOLD = "(submit.array_threshold)."
# MaxArraySize is 1001 by default: an array without a higher index than this is not split for its size alone.
_LARGEST_USUAL_INDEX = 1000
# Variable with which the caller switches gsub off.
SWITCH = "GSUB_PASS"
_NO = frozenset({"", "0", "no", "false", "off"})
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,6})", re.ASCII)
# Variables that Slurm sets for a job, a step and a task (sbatch(1), salloc(1) and srun(1), OUTPUT ENVIRONMENT
# VARIABLES). sbatch itself reads none of them.
_JOB_VARIABLES = re.compile(
    r"SLURMD_NODENAME|SLURM_(?:JOB_?\w*|STEP\w*|MEM_PER_\w+|CPUS?_\w+|GPUS\w*|NTASKS\w*|TASKS?_\w+|N(?:PROCS|NODES)|NODE\w*"
    r"|PROCID|LOCALID|GTIDS|PTY_\w+|SRUN_\w+|LAUNCH_\w+|SUBMIT_\w+|TRES_PER_TASK|DISTRIBUTION|THREADS_PER_CORE|MEM_BIND\w*"
    r"|TOPOLOGY_ADDR\w*|ARRAY_\w+|RESTART_COUNT|HET_\w+|OVERCOMMIT|PRIO_PROCESS)"
)
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)


def is_switched_on(environ: Mapping[str, str], variable: str) -> bool:
    """Return whether the caller's switch `variable` is on. A value that means neither yes nor no counts as on."""
    return environ.get(variable, "").lower() not in _NO


def find_switch_off_reason(environ: Mapping[str, str]) -> str | None:
    """Return the reason if the caller switched gsub off, else None."""
    return f"{SWITCH} is set." if is_switched_on(environ, SWITCH) else None


def find_prerun_reason(environ: Mapping[str, str]) -> str | None:
    """Return the reason if the call comes from inside a pre-run, else None.

    A pre-run submits nothing: the shim for sbatch answers the call.
    """
    return "This call comes from inside a pre-run." if is_switched_on(environ, "SLURMWRAP_PRERUN") else None


def remove_outer_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables that Slurm set for the interactive job in which the user works.

    sbatch passes them on, and a job with the outer job's SLURM_MEM_PER_CPU next to its own SLURM_MEM_PER_NODE cannot
    start a step (22.05.8).
    """
    if not environ.get("SLURM_JOB_ID"):
        return dict(environ)
    return {name: value for name, value in environ.items() if not _JOB_VARIABLES.fullmatch(name)}


def find_passthrough_reason(
    request: JobRequest, own: GsubOptions | None = None, *, at_terminal: bool = False
) -> str | None:
    """Return the reason, in one sentence, why the call goes to sbatch unchanged; None if slurmwrap handles it.

    `at_terminal`: the user types the call. In an interactive job (`srun --pty`, `salloc`, a notebook's terminal) their
    jobs are new ones. A job that a batch script submits without a terminal continues that script's own job, which had
    its pre-run.

    The caller must still do what `own` (by default the request's own options) asks for: --dry-run and --prerun=only
    must never end in a submission, whatever the reason.
    """
    own = own or request.own
    for option in ("help", "usage", "version", "autocomplete"):
        if request.setting(option):
            return f"--{option} is answered by sbatch."
    if request.hetjob and (own.prerun == "off" or own.dry_run or request.shape.gpus == 0):
        return "Heterogeneous jobs are not rewritten."
    if request.setting("test-only"):
        return "--test-only submits nothing."
    if request.environ.get("SLURM_JOB_ID") and not at_terminal:
        return f"This call comes from inside job {request.environ['SLURM_JOB_ID']}, and from no terminal."
    if request.setting("clusters"):
        return "--clusters may send the job to a cluster that slurmwrap does not see."
    if request.setting("uid") or request.setting("gid"):
        return "The job is for another user or group (--uid, --gid)."
    if request.setting("external"):
        return "An external job runs no script."
    if not request.setting("ignore-pbs") and has_foreign_directives(request.script.content):
        return "sbatch lets the script's #PBS or #BSUB lines override its #SBATCH lines."
    if (request.value("export-file") or "").isdigit():
        return "--export-file names an open file of the caller's."
    if request.shape.gpus == 0:
        return NO_GPU
    if open_file(request.script.path or "") is not None:
        return f"The script is an open file of the caller's ({request.script.path})."
    if own.prerun is None and (engine_reason := find_engine_reason(request.script.content)):
        return engine_reason
    if own.prerun == "off" and own.retry is False and not (own.tune or own.place or own.preemptible or own.lease_s):
        return "--prerun=off, --no-tune, --no-place and --no-retry leave nothing to do."
    return None


def open_file(path: str) -> int | None:
    """Return the descriptor that a name like /dev/stdin or /dev/fd/63 stands for, None for any other name.

    Snakemake and `sbatch <(...)` use such names. The script can be read only once, and no other process can open it.
    """
    if path == "/dev/stdin":
        return 0
    found = _DESCRIPTOR.fullmatch(path)
    return int(found[1]) if found else None


def find_site_reason(request: JobRequest, rules: Submit, user: str) -> str | None:
    """Return the reason by which the configuration passes the call on, else None. `user` is the caller's name."""
    if not rules.enabled:
        return "gsub is switched off (submit.enabled)."
    tasks = count_array_tasks(request.value("array") or "")
    if rules.array_threshold and tasks > rules.array_threshold:
        return f"The array has {tasks} tasks, more than {rules.array_threshold} {_THRESHOLD}"
    asked = {
        "partition": (rules.pass_partitions, "submit.pass_partitions"),
        "account": (rules.pass_accounts, "submit.pass_accounts"),
        "qos": (rules.pass_qos, "submit.pass_qos"),
    }
    for option, (patterns, key) in asked.items():
        names = (request.value(option) or "").split(",")
        if name := _match_patterns(names, patterns):
            return f"Jobs for {'QOS' if option == 'qos' else option} {name} are passed on ({key})."
    if _match_patterns([user], rules.pass_users):
        return f"Jobs of user {user} are passed on (submit.pass_users)."
    return None


def may_need_splitting(request: JobRequest, reason: str) -> bool:
    """Return whether Slurm may refuse the array for its indices, although the call goes to sbatch unchanged otherwise.

    `reason`: why it would. Only a job without GPUs and a large array are split nevertheless (sbatch/array_parts.py).
    """
    array, own = request.value("array"), request.own
    if not array or own.pack or own.prerun == "only" or not (reason == NO_GPU or reason.endswith(_THRESHOLD)):
        return False
    from slurmwrap.sbatch.array_indices import parse_indices

    found = parse_indices(array)
    return found is not None and found.last > _LARGEST_USUAL_INDEX


def count_array_tasks(indices: str) -> int:
    """Return the number of tasks in `0-15%4`, `1,3,5-7` or `[0-100:10]`; 0 for none, and for what Slurm refuses.

    Slurm counts an index once even if it is named twice. Here overlapping ranges are counted twice, which can only
    pass on more calls.
    """
    found = [_TASKS.fullmatch(part.strip()) for part in indices.partition("%")[0].strip(" []").split(",")]
    total = 0
    for part in found:
        if part is None:
            return 0
        first, last, step = (int(number) if number else None for number in part.groups())
        total += len(range(first or 0, (last or 0) + 1, step or 1)) if last is not None else 1
    return total


def _match_patterns(names: Sequence[str], patterns: Sequence[str]) -> str | None:
    """Return the first of `names` that matches one of the shell patterns."""
    if not patterns:
        return None
    from fnmatch import fnmatchcase

    return next((n for n in names if n and any(fnmatchcase(n, pattern) for pattern in patterns)), None)


# Scripts whose program belongs to someone who waits for it: a workflow engine, a scheduler of workers, a user.
#
# A pre-run cannot test such a script. It would answer instead of the job, or lack what is found only under the job's
# own number (each tried on a real Slurm, docs/callers.md). A user who asks for a pre-run explicitly still gets one.
_ENGINES: tuple[tuple[bytes, str], ...] = (
    (
        rb"-m submitit\.core\._submit\b",
        "submitit stores the work under the id of its job, and a pre-run has another id.",
    ),
    (
        rb"\bdistributed\.cli\.dask_worker\b|\bdask_cuda\b|\bdask[ -](?:cuda[ -])?worker\b",
        "A pre-run of a dask worker would join the scheduler instead of the job.",
    ),
    (
        rb"(?m)^nxf_launch\(\)",
        "Nextflow watches for files that the task's script leaves.",
    ),
    (
        rb"\bjupyter[ -](?:lab|notebook|server)\b|\bcode-server\b",
        "The script starts a server, which waits for its user.",
    ),
)
_COMMENT = rb"(?m)^[ \t]*#.*$"


def find_engine_reason(script: bytes) -> str | None:
    """Return the reason, in one sentence, why this script gets no pre-run; None for any other script."""
    code = re.sub(_COMMENT, b"", script)
    return next((why for pattern, why in _ENGINES if re.search(pattern, code)), None)
