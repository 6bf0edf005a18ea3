"""Runs PySlurm in a process of its own: requests and answers are JSON, one line each, until standard input ends.

Started as a file by worker_client.py, with what PySlurm needs alone on its path; nothing of slurmwrap is imported. An
answer is {"ok": ...}; {"refused": Slurm's words, "errno": N} where Slurm said no; {"unfit": why} where PySlurm never
asked it. "said": what libslurm printed meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

_NODE = (
    *("name", "state", "effective_cpus", "total_cpus", "allocated_cpus", "real_memory", "memory_reserved_for_system"),
    *("allocated_memory", "partitions", "active_features", "sockets", "weight", "address"),
    *("reason", "reason_user", "reason_time"),
)
_PARTITION = (
    *("name", "is_default", "max_nodes", "max_cpus_per_node", "max_memory_per_node", "max_memory_per_cpu"),
    *("max_time", "min_nodes", "oversubscribe", "qos", "state", "total_nodes"),
)


def report_releases(pyslurm: Any) -> dict[str, Any]:
    """Its release, and that of the Slurm that it was built for."""
    return {"pyslurm": metadata.version("pyslurm"), "slurm": list(pyslurm.slurm_api_version())}


def list_nodes(pyslurm: Any) -> list[dict[str, Any]]:
    """All nodes in Slurm's order.

    GPUs are from the older of PySlurm's two calls: of Slurm 22.05 the newer one never reports which are in use (it asks
    without SHOW_DETAIL), and in no release their sockets. PySlurm 25.11 has the newer one alone.
    """
    if not hasattr(pyslurm, "node"):
        raise NotImplementedError("this PySlurm does not tell the sockets of GPUs")
    # First: with an unreachable controller the older one raises no RPCError.
    told = pyslurm.Nodes.load().values()
    gres = pyslurm.node().get()
    if len(gres) != len(told):
        raise LookupError("nodes came or went between two questions")
    return [{name: getattr(node, name) for name in _NODE} | _read_gres(gres[node.name]) for node in told]


def _read_gres(node: Mapping[str, Any]) -> dict[str, str]:
    return {name: ",".join(node[name] or ()) for name in ("gres", "gres_used")}


def list_partitions(pyslurm: Any) -> list[dict[str, Any]]:
    """All partitions in Slurm's order."""
    return [{name: getattr(one, name) for name in _PARTITION} for one in pyslurm.Partitions.load().values()]


def submit(pyslurm: Any, script: str, job: Mapping[str, Any]) -> int:
    """The new job's id. `script`: its content where `job` names no file."""
    with os.fdopen(os.memfd_create("script"), "w", encoding="utf-8", newline="") as file:
        file.write(script)
        file.flush()
        # Its content given as it is would be taken for a file's name first.
        path = f"/proc/self/fd/{file.fileno()}"
        return int(pyslurm.JobSubmitDescription(**{"script": path, **job}).submit())


def change(pyslurm: Any, job_id: int, verb: str, values: Mapping[str, Any]) -> None:
    """requeue, requeuehold, hold, release, or update with PySlurm's own names.

    Refused by us: an array, of which Slurm's old calls by number take one task where scontrol takes all.
    """
    job = pyslurm.Job.load(job_id)
    if job.array_id is not None:
        raise ValueError(f"{job_id} is an array or a task of one")
    # not hold(mode="user"): it writes through a pointer that is not there yet
    if verb == "update":
        job.modify(pyslurm.JobSubmitDescription(**values))
    elif verb in ("requeue", "requeuehold"):
        job.requeue(hold=verb == "requeuehold")
    else:
        getattr(job, verb)()


def set_node(pyslurm: Any, name: str, values: Mapping[str, str]) -> None:
    """`values`: state and reason."""
    pyslurm.Node(name).modify(pyslurm.Node(**values))


# The names that a request gives; pyslurm_adapter.py and compatibility.py send them.
TASKS: Mapping[str, Callable[..., Any]] = {
    "releases": report_releases,
    "nodes": list_nodes,
    "partitions": list_partitions,
    "submit": submit,
    "change": change,
    "set_node": set_node,
}


def main() -> None:
    """Serves until standard input ends, which it does when anyone who started us is gone."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        said = os.memfd_create("said")
        # Whatever prints: only answers may go to where answers are read.
        os.dup2(said, 1)
        os.dup2(said, 2)
        import pyslurm

        for line in sys.stdin:
            answer = {**_answer_request(pyslurm, json.loads(line)), "said": _take(said)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _answer_request(pyslurm: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": TASKS[request["task"]](pyslurm, **request["with"])}
    except pyslurm.RPCError as error:
        return {"refused": str(error.msg or error), "errno": error.errno}
    except Exception as error:
        # PySlurm's own, before it asked Slurm: only an RPCError is raised behind that.
        return {"unfit": f"{type(error).__name__}: {error}"}


def _take(said: int) -> str:
    text = os.pread(said, 1 << 16, 0).decode("utf-8", "replace")
    os.lseek(said, 0, os.SEEK_SET)
    os.ftruncate(said, 0)
    return text


if __name__ == "__main__":
    main()
