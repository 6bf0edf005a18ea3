"""Slurm through PySlurm: it does what it does exactly as the commands would; the commands do the rest."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurmwrap.errors import SlurmError, SlurmUnreachable, SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.queue_priority import PriorityScheme
from slurmwrap.protocols import PartitionTest, SbatchCall, SbatchResult
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.slurm.commands import AMBIGUOUS, SBATCH_TIMEOUT_S, UNREACHABLE, SlurmCommands
from slurmwrap.slurm.pyslurm.worker_client import Link, SlurmRefused, UnsupportedPyslurm, WorkerTimeout
from slurmwrap.slurm.scontrol_parser import get_slurm_release, parse_gres, parse_gres_used, parse_state
from slurmwrap.slurm.snapshot import SEVERAL_TOPOLOGIES

# Name of a task of worker.py, and its arguments.
Request = tuple[str, dict[str, Any]]
Unable = str  # the reason why PySlurm cannot do it

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_MEMORY = re.compile(r"[1-9][0-9]{0,8}[MGT]?", re.ASCII)
_NODES = re.compile(r"[A-Za-z0-9][A-Za-z0-9,.\[\]_-]*", re.ASCII)
_GPUS = re.compile(r"gpu(?::[A-Za-z_][A-Za-z0-9_]*)?:[1-9][0-9]{0,3}", re.ASCII)
_TIME = re.compile(r"(?:[0-9]+-)?[0-9]+(?::[0-9]{1,2}){0,2}", re.ASCII)
_TEXT = re.compile(r"[^\x00-\x1f\x7f]+")
_WORD = re.compile(r"[\w.@/:,=%+\[\]-]+")

_VERBS = {
    Verb.REQUEUE: "requeue",
    Verb.REQUEUEHOLD: "requeuehold",
    Verb.HOLD: "hold",
    Verb.RELEASE: "release",
}
# Key of scontrol update → PySlurm's name, and the values that it accepts.
_KEYS: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "Comment": ("comment", _TEXT),
    "ExcNodeList": ("excluded_nodes", _NODES),
    "ReqNodeList": ("required_nodes", _NODES),
    # Memory in MiB; the keys of scontrol take no unit.
    "MinMemoryNode": ("memory_per_node", _NUMBER),
    "MinMemoryCPU": ("memory_per_cpu", _NUMBER),
    "TimeLimit": ("time_limit", _TIME),
}
# Option of sbatch → PySlurm's name, and the values that it accepts.
_OPTIONS: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "account": ("account", _WORD),
    "comment": ("comment", _TEXT),
    "constraint": ("constraints", _WORD),
    "cpus-per-task": ("cpus_per_task", _NUMBER),
    "dependency": ("dependencies", _WORD),
    "error": ("standard_error", _TEXT),
    "exclude": ("excluded_nodes", _NODES),
    "gres": ("gres_per_node", _GPUS),
    "job-name": ("name", _TEXT),
    "ntasks": ("ntasks", _NUMBER),
    "mem": ("memory_per_node", _MEMORY),
    "mem-per-cpu": ("memory_per_cpu", _MEMORY),
    "nodelist": ("required_nodes", _NODES),
    "nodes": ("nodes", _NUMBER),
    "output": ("standard_output", _TEXT),
    "partition": ("partitions", _WORD),
    "qos": ("qos", _WORD),
    "time": ("time_limit", _TIME),
}
_FLAGS: Mapping[str, dict[str, Any]] = {
    "hold": {"priority": 0},
    "no-requeue": {"is_requeueable": False},
    "requeue": {"is_requeueable": True},
    "parsable": {},
}


def make_change_request(action: SlurmAction, also: Sequence[SlurmAction] = ()) -> Request | Unable:
    """Return the request for one action or several updates of one job, or why PySlurm cannot do it."""
    if action.verb in (Verb.DRAIN, Verb.RESUME):
        drain = {"state": "DRAIN", "reason": _CONTROL.sub(" ", action.value)}
        return "set_node", {
            "name": action.target,
            "values": drain if action.verb is Verb.DRAIN else {"state": "RESUME"},
        }
    if not _NUMBER.fullmatch(action.target):
        return "Slurm's call takes no array tasks and het jobs, which have no job number of their own"
    values: dict[str, str | int] = {}
    job = {"job_id": int(action.target), "verb": "update", "values": values}
    if action.verb in _VERBS:
        return "change", {**job, "verb": _VERBS[action.verb]}
    if action.verb is not Verb.UPDATE_JOB:
        # The older cancel call of Slurm reports no error for a job that has ended.
        return "a job is cancelled by scancel"
    for update in (action, *also):
        name, takes = _KEYS.get(update.key, ("", _TEXT))
        value = _CONTROL.sub(" ", update.value)
        if not name or not takes.fullmatch(value):
            return f"{update.key}={value}"
        values[name] = value if takes is _TEXT else _convert_value(value)
    return "change", job


def make_submission_request(
    request: JobRequest, environ: Mapping[str, str], extra: Mapping[str, str]
) -> Request | Unable:
    """Return the request for a submission. `extra`: variables that sbatch itself adds to the job's environment."""
    if request.hetjob or request.value("array") is not None:
        return "het jobs and arrays"
    if request.value("nodes") is None or not request.shape.tasks:
        return "without --nodes and --ntasks PySlurm sets its own"
    job: dict[str, Any] = {}
    for option in dict.fromkeys(setting.option for setting in request.settings):
        found = _convert_option(option, request.value(option))
        if found is None:
            return f"--{option}"
        job.update(found)
    content = _decode_plain_script(request)
    if content is None:
        return "a script that is not plain UTF-8 with Unix line ends"
    description = {"name": request.job_name, "ntasks": request.shape.tasks, "working_directory": request.chdir}
    if request.script.path is not None:
        description |= {"script": request.script.path, "script_args": [request.script.path, *request.args]}
    if not request.script.from_stdin or request.value("job-name"):
        extra = {**extra, "SLURM_JOB_NAME": request.job_name}
    return "submit", {"script": content, "job": {**job, **description, "environment": {**environ, **extra}}}


def _convert_option(option: str, value: str | None) -> dict[str, Any] | None:
    if option in _FLAGS:
        return _FLAGS[option]
    name, takes = _OPTIONS.get(option, ("", _TEXT))
    return {name: _convert_value(value)} if name and value is not None and takes.fullmatch(value) else None


def _convert_value(value: str) -> str | int:
    """Convert numbers to int: PySlurm accepts "5" as a time but fails on it later."""
    return int(value) if _NUMBER.fullmatch(value) else value


def _decode_plain_script(request: JobRequest) -> str | None:
    """Return the script's text; None if PySlurm would change it or cannot read it, while sbatch judges or keeps it.

    PySlurm reads a script as text and converts its line ends; sbatch refuses DOS line ends, or keeps them.
    """
    content = request.script.content
    try:
        return None if b"\r" in content or b"\0" in content else content.decode("utf-8")
    except UnicodeDecodeError:
        return None


# Conversion of worker.py's nodes and partitions into the records that the commands return.
Told = Mapping[str, Any]


def node_from_worker(answer: Told) -> Node:
    """Convert one node. KeyError or TypeError if the fields differ from those of PySlurm 22.5."""
    cpus, busy = answer["effective_cpus"] or answer["total_cpus"], answer["allocated_cpus"]
    state, flags = parse_state(answer["state"])
    if state in ("IDLE", "ALLOCATED") and 0 < busy < cpus:
        # As scontrol prints it; PySlurm asks without SHOW_MIXED.
        state = "MIXED"
    gpus, gpu_type, gpu_sockets = parse_gres(answer["gres"])
    gpus_used, gpus_used_at = parse_gres_used(answer["gres_used"])
    return Node(
        name=answer["name"],
        state=state,
        flags=flags,
        cpus=cpus,
        cpus_alloc=busy,
        mem_mib=(answer["real_memory"] or 0) - (answer["memory_reserved_for_system"] or 0),
        mem_alloc_mib=answer["allocated_memory"] or 0,
        gpus=gpus,
        gpus_used=gpus_used,
        gpu_type=gpu_type,
        partitions=tuple(answer["partitions"]),
        features=tuple(answer["active_features"]),
        sockets=answer["sockets"] or 1,
        gpu_sockets=gpu_sockets,
        gpus_used_at=gpus_used_at,
        weight=1 if answer["weight"] is None else answer["weight"],
        address=answer["address"] or "",
        reason=_format_reason(answer),
    )


def _format_reason(answer: Told) -> str:
    """Return the reason with its author and time, as scontrol prints it."""
    if not answer["reason"]:
        return ""
    return (
        f"{answer['reason']} [{answer['reason_user']}@{answer['reason_time']}]"
        if answer["reason_time"]
        else answer["reason"]
    )


def partition_from_worker(answer: Told) -> Partition:
    """Convert one partition of a release before 25.05; later ones may name a topology, which PySlurm omits."""
    return Partition(
        name=answer["name"],
        default=answer["is_default"],
        max_nodes=_limit(answer["max_nodes"]),
        max_cpus_per_node=_limit(answer["max_cpus_per_node"]),
        max_mem_mib_per_node=_limit(answer["max_memory_per_node"]),
        max_mem_mib_per_cpu=_limit(answer["max_memory_per_cpu"]),
        max_time_s=None if (minutes := _limit(answer["max_time"])) is None else minutes * 60,
        min_nodes=max(1, _limit(answer["min_nodes"]) or 0),
        exclusive=answer["oversubscribe"] == "EXCLUSIVE",
        qos=answer["qos"] or "",
        state=answer["state"] or "UP",
        total_nodes=_limit(answer.get("total_nodes")),
    )


def _limit(value: Any) -> int | None:
    """Return None for "UNLIMITED", a missing value and 0, as the parser of scontrol's output does."""
    return value if isinstance(value, int) and value else None


_PROGRAM = re.compile(r"^[^:\n]+: (?=error: )", re.MULTILINE)  # libslurm names the program: "python"
# Releases on which PySlurm's submissions equal sbatch's. With 24.11.x they request all profiles and lack TresPerTask.
_RELEASES_FOR_SUBMISSION = frozenset({(22, 5)})
_UNSET_VALUES = ("", "(null)", "none", "cli_filter/none")


class SlurmByPySlurm:
    """The adapter; `commands` and `link` see the same environment. `say` gets one line per thing PySlurm cannot do."""

    def __init__(self, commands: SlurmCommands, link: Link, say: Callable[[str], None] = lambda line: None) -> None:
        self._commands = commands
        self._link = link
        self._say = say
        self._told: dict[str, None] = {}

    @property
    def unfit(self) -> tuple[str, ...]:
        """The failures of PySlurm after which the commands did the work."""
        return tuple(self._told)

    def close(self) -> None:
        """End PySlurm's process."""
        self._link.close()

    def cluster_name(self) -> str:
        """Return ClusterName from the commands."""
        return self._commands.cluster_name()

    def snapshot(self) -> Snapshot:
        """Return nodes and partitions from PySlurm and the rest from one command; all by command if PySlurm fails."""
        try:
            nodes = tuple(node_from_worker(answer) for answer in self._ask_worker("nodes"))
            partitions = tuple(partition_from_worker(answer) for answer in self._ask_worker("partitions"))
        except (UnsupportedPyslurm, KeyError, TypeError, SlurmUnreachable) as error:
            if isinstance(error, SlurmUnreachable) and not self._link.broken:
                raise
            self._report_once("nodes", error)
            return self._commands.snapshot()
        snapshot = self._commands.snapshot(nodes)
        if (snapshot.release or SEVERAL_TOPOLOGIES) >= SEVERAL_TOPOLOGIES:
            return snapshot
        return replace(snapshot, partitions=partitions)

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        """Submit once. PySlurm is used only if sbatch would do nothing more than PySlurm (`_make_request`)."""
        request = self._make_request(call)
        if isinstance(request, str):
            return self._commands.sbatch(call)
        timeout_s = SBATCH_TIMEOUT_S if call.timeout_s is None else call.timeout_s
        try:
            job_id = int(self._link.ask(*request, timeout_s=timeout_s))
        except UnsupportedPyslurm as error:
            self._report_once("submissions", error)
            return self._commands.sbatch(call)
        except SlurmRefused as error:
            return _make_refusal(error)
        except WorkerTimeout as error:
            # It is unknown whether Slurm accepted the job, so it must not be submitted again, not even by sbatch.
            return SbatchResult(exit_code=1, stdout="", stderr=f"{error}\n", job_id=None, timed_out=True)
        plain = any(word == "--parsable" for word in call.options)
        stdout = f"{job_id}\n" if plain else f"Submitted batch job {job_id}\n"
        return SbatchResult(exit_code=0, stdout=stdout, stderr="", job_id=job_id)

    def test_partitions(self, call: SbatchCall, names: Sequence[str]) -> Mapping[str, PartitionTest]:
        """Return Slurm's answers in each partition from the commands."""
        return self._commands.test_partitions(call, names)

    def job(self, address: str) -> JobRecord | None:
        """Return the job from the commands."""
        return self._commands.job(address)

    def priority_scheme(self) -> PriorityScheme:
        """Return how Slurm orders its queue."""
        return self._commands.priority_scheme()

    def priority_terms(self, key: str, user: str | None = None) -> Mapping[int, int]:
        """Return Nice or SiteFactor of pending jobs by raw job id."""
        return self._commands.priority_terms(key, user)

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        """Return the jobs from the commands."""
        return self._commands.jobs(user)

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        """Carry out one action after the commands' own checks. Actions as another user are done by command."""
        request = make_change_request(action, also)
        if isinstance(request, str) or (owner is not None and os.geteuid() == 0):
            self._commands.apply(action, owner, also)
            return
        self._commands.checked(action, owner, also)
        try:
            self._ask_worker(*request)
        except UnsupportedPyslurm as error:
            self._report_once(action.verb.value, error)
            self._commands.apply(action, owner, also)

    def _ask_worker(self, task: str, given: Mapping[str, Any] | None = None) -> Any:
        """Return the worker's answer; SlurmError and SlurmUnreachable as the commands raise them."""
        try:
            return self._link.ask(task, given)
        except SlurmRefused as error:
            kind = SlurmUnreachable if re.search(UNREACHABLE, str(error)) else SlurmError
            raise kind(str(error)) from None
        except WorkerTimeout as error:
            raise SlurmUnreachable(str(error)) from None

    def _make_request(self, call: SbatchCall) -> Request | Unable:
        config = self._commands.config()
        if not call.environ:
            return "only the commands know which environment is meant"
        if get_slurm_release(config) not in _RELEASES_FOR_SUBMISSION:
            return "on this release PySlurm's submissions differ from sbatch's"
        if config.get("PropagateResourceLimits", "") != "NONE":
            return "sbatch passes the resource limits of the shell on"
        if config.get("CliFilterPlugins", "") not in _UNSET_VALUES or _has_plugins(config):
            return "plugins that inspect submissions run only in sbatch"
        cwd = call.cwd or str(Path.cwd())
        script = [] if call.script_path is None else [call.script_path]
        try:
            request = parse_request(
                [*call.options, *script, *call.args],
                environ=call.environ,
                cwd=cwd,
                read_script=lambda path: Path(path).read_bytes(),
                read_stdin=lambda: call.stdin or b"",
                release=None,
            )
        except (SlurmwrapError, OSError) as error:
            # sbatch reports the error in its own words.
            return str(error)
        return make_submission_request(request, call.environ, _list_added_variables(cwd))

    def _report_once(self, what: str, error: Exception) -> None:
        line = f"PySlurm: {what} by command: {repr(error) if isinstance(error, KeyError | TypeError) else error}"
        if line not in self._told:
            self._told[line] = None
            self._say(line)


def _has_plugins(config: Mapping[str, str]) -> bool:
    """Return whether there is a plugstack.conf: SPANK plugins see a submission only inside sbatch."""
    configured = config.get("PlugStackConfig", "")
    default = Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf")).with_name("plugstack.conf")
    return Path(configured).exists() if configured not in _UNSET_VALUES else default.exists()


def _list_added_variables(cwd: str) -> dict[str, str]:
    """Return the variables that sbatch adds to the environment of the job (sbatch.c of 22.05)."""
    niceness = 0
    with suppress(OSError):
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
    host = socket.gethostname().partition(".")[0]
    return {"SLURM_SUBMIT_DIR": cwd, "SLURM_SUBMIT_HOST": host, "SLURM_PRIO_PROCESS": str(niceness)}


def _make_refusal(error: SlurmRefused) -> SbatchResult:
    """Return the refusal in sbatch's format."""
    output = "".join(f"sbatch: {line}\n" for line in _PROGRAM.sub("", error.said).splitlines() if line)
    stderr = f"{output}sbatch: error: Batch job submission failed: {error}\n"
    return SbatchResult(
        exit_code=1, stdout="", stderr=stderr, job_id=None, timed_out=bool(re.search(AMBIGUOUS, stderr))
    )
