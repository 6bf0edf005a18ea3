"""Run PySlurm in a separate process: requests and answers are JSON, one line each, until standard input ends.

worker_client.py starts it as a file, with only the paths that PySlurm needs; it imports nothing of slurmwrap. An answer
is {"ok": ...}; {"refused": Slurm's message, "errno": N} if Slurm refused; {"unfit": reason} if PySlurm failed before it
asked Slurm. "said": what libslurm printed meanwhile.
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
    """Return PySlurm's release, and the release of the Slurm that it was built for."""
    return {"pyslurm": metadata.version("pyslurm"), "slurm": list(pyslurm.slurm_api_version())}


def list_nodes(pyslurm: Any) -> list[dict[str, Any]]:
    """Return all nodes in Slurm's order.

    GPUs come from the older of PySlurm's two calls: with Slurm 22.05 the newer one never reports which GPUs are in use
    (it asks without SHOW_DETAIL), and in no release does it report their sockets. PySlurm 25.11 has only the newer one.
    """
    if not hasattr(pyslurm, "node"):
        raise NotImplementedError("this PySlurm does not report the sockets of GPUs")
    # This call comes first: with an unreachable controller the older one raises no RPCError.
    nodes = pyslurm.Nodes.load().values()
    gres = pyslurm.node().get()
    if len(gres) != len(nodes):
        raise LookupError("nodes came or went between two questions")
    return [{name: getattr(node, name) for name in _NODE} | _read_gres(gres[node.name]) for node in nodes]


def _read_gres(node: Mapping[str, Any]) -> dict[str, str]:
    return {name: ",".join(node[name] or ()) for name in ("gres", "gres_used")}


def list_partitions(pyslurm: Any) -> list[dict[str, Any]]:
    """Return all partitions in Slurm's order."""
    return [{name: getattr(one, name) for name in _PARTITION} for one in pyslurm.Partitions.load().values()]


def submit(pyslurm: Any, script: str, job: Mapping[str, Any]) -> int:
    """Submit a job and return its id. `script`: the content of the script, used if `job` names no file."""
    with os.fdopen(os.memfd_create("script"), "w", encoding="utf-8", newline="") as file:
        file.write(script)
        file.flush()
        # PySlurm would first try to open the content itself as a file name.
        path = f"/proc/self/fd/{file.fileno()}"
        return int(pyslurm.JobSubmitDescription(**{"script": path, **job}).submit())


def change(pyslurm: Any, job_id: int, verb: str, values: Mapping[str, Any]) -> None:
    """Do one of requeue, requeuehold, hold, release, or update with PySlurm's own names.

    Arrays are refused: Slurm's older calls by number change one task where scontrol changes all.
    """
    job = pyslurm.Job.load(job_id)
    if job.array_id is not None:
        raise ValueError(f"{job_id} is an array or a task of one")
    # Not hold(mode="user"): it writes through a pointer that is not initialised yet.
    if verb == "update":
        job.modify(pyslurm.JobSubmitDescription(**values))
    elif verb in ("requeue", "requeuehold"):
        job.requeue(hold=verb == "requeuehold")
    else:
        getattr(job, verb)()


def set_node(pyslurm: Any, name: str, values: Mapping[str, str]) -> None:
    """Update a node. `values`: state and reason."""
    pyslurm.Node(name).modify(pyslurm.Node(**values))


# The names of tasks in requests, as pyslurm_adapter.py and compatibility.py send them.
TASKS: Mapping[str, Callable[..., Any]] = {
    "releases": report_releases,
    "nodes": list_nodes,
    "partitions": list_partitions,
    "submit": submit,
    "change": change,
    "set_node": set_node,
}


def main() -> None:
    """Serve requests until standard input ends, which it does when the process that started this one is gone."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        printed = os.memfd_create("said")
        # Everything that libslurm or Python prints goes to `printed`: only answers may be written to `answers`.
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        import pyslurm

        for line in sys.stdin:
            answer = {**_answer_request(pyslurm, json.loads(line)), "said": _take_output(printed)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _answer_request(pyslurm: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": TASKS[request["task"]](pyslurm, **request["with"])}
    except pyslurm.RPCError as error:
        return {"refused": str(error.msg or error), "errno": error.errno}
    except Exception as error:
        # An error of PySlurm before it asked Slurm: after that it raises only RPCError.
        return {"unfit": f"{type(error).__name__}: {error}"}


def _take_output(descriptor: int) -> str:
    text = os.pread(descriptor, 1 << 16, 0).decode("utf-8", "replace")
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.ftruncate(descriptor, 0)
    return text


if __name__ == "__main__":
    main()
