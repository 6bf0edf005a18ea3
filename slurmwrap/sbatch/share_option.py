"""Whether a job may share its GPU with another one of its user (gsub --share), and what is added to it. Pure."""

from __future__ import annotations

import re

from slurmwrap.sbatch.job_request import JobRequest, OptionChange
from slurmwrap.sbatch.pack_option import find_wrapper_obstacle

# Options with which a job could not run within the allocation of another one as it would by itself.
_REFUSED = {
    "array": "it is an array, whose own tasks share GPUs with --pack",
    "signal": "Slurm sends the signal of --signal by the job's own time limit, not by that of the job which it joins",
    "no-requeue": "a job that shares its GPU may be started again, as after a requeue, and --no-requeue forbids that",
    "get-user-env": "--get-user-env builds its environment on the node",
    "licenses": "--licenses would not be held for it in the allocation of another job",
    "bb": "a burst buffer belongs to one allocation",
    "bbf": "a burst buffer belongs to one allocation",
}
# Jobs that differ in one of these may be meant for other nodes or other accounts.
_SAME = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "clusters", "wckey")
_ABSOLUTE_SRUN = re.compile(rb"(?m)^[^#\n]*/srun\b")
_OTHER_GRES = re.compile(r"(?!(?:gres[:/])?gpu\b|none$)\w", re.IGNORECASE)


def find_sharing_obstacle(request: JobRequest) -> str:
    """Return why the job cannot share its GPU; "" if it can."""
    for option, why in _REFUSED.items():
        if request.setting(option) is not None:
            return why
    if request.own.pack is not None:
        return "--pack shares the GPU already"
    if why := find_wrapper_obstacle(request, "the job"):
        return why
    if any(_OTHER_GRES.match(word) for word in (request.value("gres") or "").split(",")):
        return "--gres asks for more than a GPU"
    if read_exported(request) is None:
        return "--export chooses its environment; only ALL and ALL,NAME=value can be repeated in another job"
    if request.own.retry or request.own.retry_on:
        return "a retry would judge the node on which it has only its exit code reported"
    if _ABSOLUTE_SRUN.search(request.script.content):
        return "the script calls srun by its path, and its steps must go to the allocation of the other job"
    return ""


def read_exported(request: JobRequest) -> dict[str, str] | None:
    """Return the variables that --export sets besides all of the environment; None if it does not export all."""
    words = (request.value("export") or "ALL").split(",")
    if words[0].upper() != "ALL" or any("=" not in word or set(word) & set("'\"") for word in words[1:]):
        return None
    return dict(word.split("=", 1) for word in words[1:])


def make_share_place(request: JobRequest) -> tuple[str, ...]:
    """Return where the job may run, as it was asked for: two jobs share a GPU only if this is the same."""
    plugins = (f"{name}={request.value(name)}" for name in sorted(request.plugin_options) if request.setting(name))
    return (request.shape.gpu_type or "", *(request.value(option) or "" for option in _SAME), *plugins)


def list_share_changes(request: JobRequest) -> tuple[OptionChange, ...]:
    """Return the options that the job needs: its name, and outputs that its own start does not empty."""
    name = OptionChange(
        option="job-name", value=request.job_name, reason="--share: its name by the script, as without --share"
    )
    append = OptionChange(
        option="open-mode",
        value="append",
        reason="--share: what it wrote while it shared another job's GPU stays when Slurm starts it",
    )
    return (*(() if request.value("job-name") else (name,)), *(() if appends_output(request) else (append,)))


def appends_output(request: JobRequest) -> bool:
    """Return whether the user asked for output files that are added to."""
    return (request.value("open-mode") or "").lower().startswith("a")
