"""Which requests PySlurm can do exactly as the commands do it: requests for worker.py, or why the command must. Pure.

Measured on PySlurm 22.5.3: clearing a list of nodes does nothing, --switches and --signal are read and never sent,
--nodes, memory in KiB, StartTime and Nice mean something else or nothing. What is not in a table here goes by command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slurmwrap.model.action import SlurmAction, Verb
from slurmwrap.sbatch.request import JobRequest

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
