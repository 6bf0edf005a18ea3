"""Slurm by PySlurm: what it does exactly as the commands is done by it, the rest by the commands."""

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
from slurmwrap.protocols import SbatchCall, SbatchResult
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.slurm.commands import AMBIGUOUS, SBATCH_TIMEOUT_S, UNREACHABLE, SlurmCommands
from slurmwrap.slurm.pyslurm.worker_client import Link, SlurmRefused, UnsupportedPyslurm, WorkerTimeout
from slurmwrap.slurm.scontrol_parser import parse_gres, parse_gres_used, parse_state, release_of
from slurmwrap.slurm.snapshot import SEVERAL_TOPOLOGIES

# A task of worker.py and its arguments.
Request = tuple[str, dict[str, Any]]
Unable = str  # why not

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
# Of scontrol update → PySlurm's name, and what it takes.
_KEYS: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "Comment": ("comment", _TEXT),
    "ExcNodeList": ("excluded_nodes", _NODES),
    "ReqNodeList": ("required_nodes", _NODES),
    # Of MiB: scontrol takes no unit.
    "MinMemoryNode": ("memory_per_node", _NUMBER),
    "MinMemoryCPU": ("memory_per_cpu", _NUMBER),
    "TimeLimit": ("time_limit", _TIME),
}
# Of sbatch → the same.
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


def change_of(action: SlurmAction, also: Sequence[SlurmAction] = ()) -> Request | Unable:
    """One action, or several updates of one job."""
    if action.verb in (Verb.DRAIN, Verb.RESUME):
        drain = {"state": "DRAIN", "reason": _CONTROL.sub(" ", action.value)}
        return "set_node", {
            "name": action.target,
            "values": drain if action.verb is Verb.DRAIN else {"state": "RESUME"},
        }
    if not _NUMBER.fullmatch(action.target):
        return "array tasks and het jobs have no number of their own that Slurm's call would take"
    values: dict[str, str | int] = {}
    job = {"job_id": int(action.target), "verb": "update", "values": values}
    if action.verb in _VERBS:
        return "change", {**job, "verb": _VERBS[action.verb]}
    if action.verb is not Verb.UPDATE_JOB:
        # Slurm's old call says nothing of a job that has ended.
        return "a job is cancelled by scancel"
    for one in (action, *also):
        name, takes = _KEYS.get(one.key, ("", _TEXT))
        value = _CONTROL.sub(" ", one.value)
        if not name or not takes.fullmatch(value):
            return f"{one.key}={value}"
        values[name] = value if takes is _TEXT else _convert_value(value)
    return "change", job


def make_submission_request(
    request: JobRequest, environ: Mapping[str, str], extra: Mapping[str, str]
) -> Request | Unable:
    """A whole submission. `extra`: what sbatch itself adds to the environment that it hands on."""
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
    content = _find_script_objection(request)
    if content is None:
        return "a script that is not plain UTF-8 with Unix line ends"
    named = {"name": request.job_name, "ntasks": request.shape.tasks, "working_directory": request.chdir}
    if request.script.path is not None:
        named |= {"script": request.script.path, "script_args": [request.script.path, *request.args]}
    if not request.script.from_stdin or request.value("job-name"):
        extra = {**extra, "SLURM_JOB_NAME": request.job_name}
    return "submit", {"script": content, "job": {**job, **named, "environment": {**environ, **extra}}}


def _convert_option(option: str, value: str | None) -> dict[str, Any] | None:
    if option in _FLAGS:
        return _FLAGS[option]
    name, takes = _OPTIONS.get(option, ("", _TEXT))
    return {name: _convert_value(value)} if name and value is not None and takes.fullmatch(value) else None


def _convert_value(value: str) -> str | int:
    """PySlurm takes "5" for a time and then stumbles over it."""
    return int(value) if _NUMBER.fullmatch(value) else value


def _find_script_objection(request: JobRequest) -> str | None:
    """PySlurm reads a script as text and changes the ends of its lines: sbatch refuses those of DOS, or keeps them."""
    content = request.script.content
    try:
        return None if b"\r" in content or b"\0" in content else content.decode("utf-8")
    except UnicodeDecodeError:
        return None


# Turns what worker.py reports of nodes and partitions into the records that the commands give.
Told = Mapping[str, Any]


def node_from_worker(told: Told) -> Node:
    """One node. KeyError or TypeError where it is not what PySlurm 22.5 gives."""
    cpus, busy = told["effective_cpus"] or told["total_cpus"], told["allocated_cpus"]
    state, flags = parse_state(told["state"])
    if state in ("IDLE", "ALLOCATED") and 0 < busy < cpus:
        # As scontrol says it; PySlurm asks without SHOW_MIXED.
        state = "MIXED"
    gpus, gpu_type, gpu_sockets = parse_gres(told["gres"])
    gpus_used, gpus_used_at = parse_gres_used(told["gres_used"])
    return Node(
        name=told["name"],
        state=state,
        flags=flags,
        cpus=cpus,
        cpus_alloc=busy,
        mem_mib=(told["real_memory"] or 0) - (told["memory_reserved_for_system"] or 0),
        mem_alloc_mib=told["allocated_memory"] or 0,
        gpus=gpus,
        gpus_used=gpus_used,
        gpu_type=gpu_type,
        partitions=tuple(told["partitions"]),
        features=tuple(told["active_features"]),
        sockets=told["sockets"] or 1,
        gpu_sockets=gpu_sockets,
        gpus_used_at=gpus_used_at,
        weight=1 if told["weight"] is None else told["weight"],
        address=told["address"] or "",
        reason=_format_reason(told),
    )


def _format_reason(told: Told) -> str:
    """With who set it and when, as scontrol adds it."""
    if not told["reason"]:
        return ""
    return f"{told['reason']} [{told['reason_user']}@{told['reason_time']}]" if told["reason_time"] else told["reason"]


def partition_from_worker(told: Told) -> Partition:
    """One partition of a release before 25.05, from when on it may name a topology that PySlurm does not give."""
    return Partition(
        name=told["name"],
        default=told["is_default"],
        max_nodes=_limit(told["max_nodes"]),
        max_cpus_per_node=_limit(told["max_cpus_per_node"]),
        max_mem_mib_per_node=_limit(told["max_memory_per_node"]),
        max_mem_mib_per_cpu=_limit(told["max_memory_per_cpu"]),
        max_time_s=None if (minutes := _limit(told["max_time"])) is None else minutes * 60,
        min_nodes=max(1, _limit(told["min_nodes"]) or 0),
        exclusive=told["oversubscribe"] == "EXCLUSIVE",
        qos=told["qos"] or "",
        state=told["state"] or "UP",
        total_nodes=_limit(told.get("total_nodes")),
    )


def _limit(value: Any) -> int | None:
    """None for "UNLIMITED", for nothing said, and for 0 as scontrol's reader takes it."""
    return value if isinstance(value, int) and value else None


_PROGRAM = re.compile(r"^[^:\n]+: (?=error: )", re.MULTILINE)  # libslurm names the program: "python"
# Where its submissions were found to be sbatch's. With 24.11.x they ask for all profiles, and lack TresPerTask.
_SUBMITS = frozenset({(22, 5)})
_NOTHING = ("", "(null)", "none", "cli_filter/none")


class SlurmByPySlurm:
    """`commands` and `link` see the same environment. `say` hears once of each thing that PySlurm is unfit for."""

    def __init__(self, commands: SlurmCommands, link: Link, say: Callable[[str], None] = lambda line: None) -> None:
        self._commands = commands
        self._link = link
        self._say = say
        self._told: dict[str, None] = {}

    @property
    def unfit(self) -> tuple[str, ...]:
        """What PySlurm was asked to do and could not, so that the commands did it."""
        return tuple(self._told)

    def close(self) -> None:
        """Ends PySlurm's process."""
        self._link.close()

    def cluster_name(self) -> str:
        """As the commands."""
        return self._commands.cluster_name()

    def snapshot(self) -> Snapshot:
        """Nodes and partitions by PySlurm, the rest by one command; all by commands where PySlurm cannot."""
        try:
            nodes = tuple(node_from_worker(told) for told in self._ask_worker("nodes"))
            partitions = tuple(partition_from_worker(told) for told in self._ask_worker("partitions"))
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
        """Submits once. By PySlurm only where sbatch would do nothing that PySlurm does not (`_as_request`)."""
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
            # No one knows: not again, by sbatch neither.
            return SbatchResult(exit_code=1, stdout="", stderr=f"{error}\n", job_id=None, timed_out=True)
        plain = any(word == "--parsable" for word in call.options)
        stdout = f"{job_id}\n" if plain else f"Submitted batch job {job_id}\n"
        return SbatchResult(exit_code=0, stdout=stdout, stderr="", job_id=job_id)

    def job(self, address: str) -> JobRecord | None:
        """As the commands."""
        return self._commands.job(address)

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        """As the commands."""
        return self._commands.jobs(user)

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        """One action, with the commands' own checks before it. In the name of another user by command."""
        request = change_of(action, also)
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
        """The answer; SlurmError and SlurmUnreachable as the commands raise them."""
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
            return "the commands know whose environment is meant then"
        if release_of(config) not in _SUBMITS:
            return "a submission by PySlurm is another one here"
        if config.get("PropagateResourceLimits", "") != "NONE":
            return "sbatch hands the shell's own limits on"
        if config.get("CliFilterPlugins", "") not in _NOTHING or _has_plugins(config):
            return "plugins that look at submissions run in sbatch alone"
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
            # sbatch says it in its own words
            return str(error)
        return make_submission_request(request, call.environ, _list_added_variables(cwd))

    def _report_once(self, what: str, error: Exception) -> None:
        line = f"PySlurm: {what} by command: {repr(error) if isinstance(error, KeyError | TypeError) else error}"
        if line not in self._told:
            self._told[line] = None
            self._say(line)


def _has_plugins(config: Mapping[str, str]) -> bool:
    """Whether there is a plugstack.conf: SPANK plugins see a submission inside sbatch."""
    named = config.get("PlugStackConfig", "")
    beside = Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf")).with_name("plugstack.conf")
    return Path(named).exists() if named not in _NOTHING else beside.exists()


def _list_added_variables(cwd: str) -> dict[str, str]:
    """What sbatch adds to the environment of the job (sbatch.c of 22.05)."""
    niceness = 0
    with suppress(OSError):
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
    host = socket.gethostname().partition(".")[0]
    return {"SLURM_SUBMIT_DIR": cwd, "SLURM_SUBMIT_HOST": host, "SLURM_PRIO_PROCESS": str(niceness)}


def _make_refusal(error: SlurmRefused) -> SbatchResult:
    """In sbatch's words."""
    said = "".join(f"sbatch: {line}\n" for line in _PROGRAM.sub("", error.said).splitlines() if line)
    stderr = f"{said}sbatch: error: Batch job submission failed: {error}\n"
    return SbatchResult(
        exit_code=1, stdout="", stderr=stderr, job_id=None, timed_out=bool(re.search(AMBIGUOUS, stderr))
    )
