"""The shim of srun and mpirun in a trial: start their command as one task per GPU (adapter: processes).

It becomes the command, or waits for the tasks that it started. shims/launch calls it as
`python -I -m slurmwrap.prerun.trial.launcher_shim NAME SHIMS_DIR ARGUMENTS...`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from slurmwrap.prerun.static.command_wrappers import is_program
from slurmwrap.prerun.static.launcher_args import (
    MpiCall,
    SrunCall,
    count_srun_tasks_of_trial,
    parse_export,
    parse_mpirun,
    parse_srun,
    read_first_of_multi_prog,
)
from slurmwrap.prerun.trial.trial_environment import ALLOCATION

# Seconds that the other tasks may go on after one has failed: they wait for it in a collective that never completes.
LINGER_S = 10.0
# Variables that are removed. If Open MPI finds SLURM_STEP_ID, it expects srun's PMI and aborts without it
# (schizo_slurm.c and ess_singleton_component.c of 4.1, measured with 4.1.4, whatever its settings are). Without the
# variable it starts as a single process; it ignores SLURM_STEPID, which srun's tasks get.
_REMOVED_VARIABLES = ("SLURM_STEP_ID", "SLURM_STEPID")
# Port of srun for its tasks. No srun listens, so a library that connects is refused at once.
_NO_PORT = "1"


def make_task_environment(task: int, tasks: int, node: str) -> dict[str, str]:
    """Return the variables that srun sets for one of `tasks` tasks on one node.

    See srun(1), OUTPUT ENVIRONMENT VARIABLES.
    """
    return {
        **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID"), str(task)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(tasks)),
        **dict.fromkeys(("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), str(tasks)),
        **dict.fromkeys(("SLURM_NODEID",), "0"),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), "1"),
        "SLURM_GTIDS": ",".join(map(str, range(tasks))),
        "SLURM_STEP_NODELIST": node,
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }


def make_step_environment(call: SrunCall, tasks: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that srun sets for all tasks of a step, except those of make_task_environment().

    Measured on 22.05.8; see srun(1), OUTPUT ENVIRONMENT VARIABLES. SLURM_STEP_ID is left out for Open MPI.
    """
    mask = os.umask(0)
    os.umask(mask)
    names = [name for name, _ in call.options]
    own_name = call.value("job-name") or call.value("J")
    found = {
        "SLURM_STEPID": "0",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        **dict.fromkeys(("SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT"), _NO_PORT),
        "SLURM_UMASK": f"{mask:04o}",
        "SRUN_DEBUG": str(3 + names.count("v") + names.count("verbose") - names.count("Q") - names.count("quiet")),
        "SLURM_JOB_NAME": own_name or environ.get("SLURM_JOB_NAME") or Path(call.command[0]).name,
    }
    for source, variable in _COPIED_VARIABLES.items():
        if source in environ:
            found[variable] = environ[source]
    for option, variable in _STEP_OPTIONS.items():
        if value := call.value(option):
            found[variable] = value
    if "SLURM_NTASKS_PER_NODE" in environ:
        found["SLURM_NTASKS_PER_NODE"] = str(tasks)
    if call.given("overcommit") or call.given("O"):
        found["SLURM_OVERCOMMIT"] = "1"
    if (cpus := call.value("cpus-per-task") or "").isdigit():
        here = environ.get("SLURM_CPUS_ON_NODE", "")
        found["SLURM_CPUS_PER_TASK"] = str(min(int(cpus), max(1, int(here) // tasks)) if here.isdigit() else cpus)
    return found | _make_binding_variables(call, tasks, environ)


# Options of srun whose text is the value of a variable in its tasks.
_STEP_OPTIONS = {
    "ntasks-per-core": "SLURM_NTASKS_PER_CORE",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_TRES",
    "ntasks-per-socket": "SLURM_NTASKS_PER_SOCKET",
    "threads-per-core": "SLURM_THREADS_PER_CORE",
}
# Variables that tasks have under a second name.
_COPIED_VARIABLES = {
    "SLURM_JOB_CPUS_PER_NODE": "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0",
    "SLURM_JOB_GPUS": "SLURM_STEP_GPUS",
    "SLURM_NTASKS_PER_GPU": "SLURM_NTASKS_PER_TRES",
}
_CPU_LISTS = re.compile(r"((?:map|mask)_(?:cpu|ldom))[:=](.*)$", re.IGNORECASE)


def _make_binding_variables(call: SrunCall, tasks: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of distribution and of binding to CPUs, memory and GPUs."""
    from slurmwrap.prerun.trial.trial_spec import format_cpu_freq, make_distribution_variables, split_mem_bind

    base = "cyclic" if tasks == 1 else "block"
    found = {"SLURM_DISTRIBUTION": environ.get("SLURM_DISTRIBUTION") or base}
    found |= make_distribution_variables(call.value("distribution") or call.value("m") or "")
    if found["SLURM_DISTRIBUTION"] in ("pack", "nopack"):
        found["SLURM_DISTRIBUTION"] = f"{base},{found['SLURM_DISTRIBUTION']}"
    if memory := call.value("mem-bind") or environ.get("SLURM_MEM_BIND"):
        flags, kind, listed = split_mem_bind(memory)
        verbose, kind = ("verbose" if "verbose" in flags else "quiet"), f"{kind}:" if listed else kind
        prefer = ("prefer",) if "prefer" in flags else ()
        found |= {"SLURM_MEM_BIND_TYPE": kind, "SLURM_MEM_BIND_LIST": listed, "SLURM_MEM_BIND_VERBOSE": verbose}
        found |= {"SLURM_MEM_BIND_PREFER": "prefer"} if prefer else {}
        found["SLURM_MEM_BIND"] = ",".join((verbose, *prefer, kind)) + listed
    if frequency := call.value("cpu-freq"):
        found["SLURM_CPU_FREQ_REQ"] = format_cpu_freq(frequency)
    if frequency := call.value("gpu-freq") or environ.get("SLURM_GPU_FREQ"):
        found["SLURMD_TRES_FREQ"] = f"gpu:{frequency}"
    if bound := _find_gpu_binding(call, environ):
        found["SLURMD_TRES_BIND"] = f"gpu:{bound}"
    return found | _make_cpu_bind_variables(call, tasks, environ)


def _find_gpu_binding(call: SrunCall, environ: Mapping[str, str]) -> str:
    if bind := call.value("gpu-bind") or environ.get("SLURM_GPU_BIND"):
        return bind
    per_task = call.value("gpus-per-task") or environ.get("SLURM_GPUS_PER_TASK")
    per_gpu = (
        call.value("ntasks-per-gpu") or environ.get("SLURM_NTASKS_PER_GPU") or environ.get("SLURM_NTASKS_PER_TRES")
    )
    return f"per_task:{per_task}" if per_task else f"single:{per_gpu}" if per_gpu else ""


def _make_cpu_bind_variables(call: SrunCall, tasks: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the SLURM_CPU_BIND variables: of an option, or of the masks that the plugin task/affinity sets."""
    text = call.value("cpu-bind") or environ.get("SLURM_CPU_BIND") or ""
    listed = _CPU_LISTS.search(text)
    words = set((text[: listed.start()] if listed else text).lower().split(","))
    unit = next((word for word in ("threads", "cores", "sockets", "ldoms") if word in words), "")
    kind = next((word for word in ("none", "rank", "rank_ldom") if word in words), "none" if "no" in words else "")
    if not (listed or unit or kind):
        unit = _find_default_unit(call, environ)
    kind, masks = (f"{listed[1].lower()}:", listed[2]) if listed else (kind, "")
    if kind in ("", "rank") and _has_affinity_plugin(environ):
        mask = sum(1 << cpu for cpu in os.sched_getaffinity(0))
        unit, kind, masks = "", "mask_cpu:", ",".join([f"0x{mask:X}"] * tasks)
    bound = ",".join(part for part in (unit, kind) if part)
    verbose = "verbose" if words & {"v", "verbose"} else "quiet"
    if not bound and verbose == "quiet":
        return {}
    return {
        "SLURM_CPU_BIND": ",".join(part for part in (verbose, bound) if part) + masks,
        "SLURM_CPU_BIND_LIST": masks,
        "SLURM_CPU_BIND_TYPE": bound,
        "SLURM_CPU_BIND_VERBOSE": verbose,
    }


def _find_default_unit(call: SrunCall, environ: Mapping[str, str]) -> str:
    """Return what --cpu-bind is without the option: threads, cores, sockets or "", by other options."""
    if any(call.given(name) for name in ("hint", "threads-per-core")):
        return "threads"
    if any(name in environ for name in ("SLURM_HINT", "SLURM_THREADS_PER_CORE")):
        return "threads"
    return "cores" if call.given("ntasks-per-core") else "sockets" if call.given("ntasks-per-socket") else ""


def _has_affinity_plugin(environ: Mapping[str, str]) -> bool:
    """Return whether slurm.conf names task/affinity; False if the file cannot be read."""
    try:
        text = Path(environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^\s*TaskPlugin\s*=.*affinity", text, re.IGNORECASE | re.MULTILINE) is not None


# Variables that the launchers of Open MPI and MVAPICH set for rank 0 of 1. The MPI library finds no daemon and starts
# as a single process.
RANK_0: Mapping[str, str] = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "MV2_COMM_WORLD_RANK": "0",
    "MV2_COMM_WORLD_SIZE": "1",
    "MV2_COMM_WORLD_LOCAL_RANK": "0",
    **dict.fromkeys(("PMI_RANK", "MPI_LOCALRANKID"), "0"),
    "PMI_SIZE": "1",
    "MPI_LOCALNRANKS": "1",
}
# Settings for local processes only, as many as there are GPUs, whatever the number of tasks of the allocation.
_LOCAL_MPI_SETTINGS: Mapping[str, str] = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "HYDRA_LAUNCHER": "fork",
}

_DEFAULT_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin")


def main(argv: Sequence[str]) -> NoReturn:
    """Run the launcher's command. `argv`: name of the launcher, directory of the shims, arguments."""
    name, shims, *arguments = argv
    environ = {k: v for k, v in os.environ.items() if k not in _REMOVED_VARIABLES}
    if name == "srun":
        _run_srun(arguments, shims, environ)
    call = parse_mpirun(arguments, is_program)
    if not call.command:
        _exec_real_program(name, shims, arguments)
    tasks = _count_mpi_tasks(call, environ)
    if tasks > 1:
        options = ("-np", str(tasks), *(("-H", f"localhost:{tasks}") if name == "horovodrun" else ()))
        os.environ.update({**_add_step_counter(environ), **_LOCAL_MPI_SETTINGS, **dict(call.environment)})
        if call.chdir:
            os.chdir(call.chdir)
        _exec_real_program(name, shims, (*options, *call.command))
    _exec_command(call.command, {**environ, **RANK_0, **dict(call.environment)}, call.chdir)


def _run_srun(arguments: Sequence[str], shims: str, environ: dict[str, str]) -> NoReturn:
    call = parse_srun(arguments)
    if not call.command or call.given("version") or call.given("help"):
        _exec_real_program("srun", shims, arguments)
    # Only srun's plugins can start a container, so run the real srun. The step ends with the pre-run's job.
    if call.in_container:
        _exec_container_task(call, shims, environ)
    node = environ.get("SLURMD_NODENAME") or environ.get("SLURM_JOB_NODELIST", "localhost")
    command, chdir = _get_command(call), call.value("chdir")
    own = parse_export(call.value("export"))
    tasks = count_srun_tasks_of_trial(
        call, per_node=_parse_number("TRIAL_TASKS"), nodes=_parse_number("JOB_NODES"), gpus=_parse_number("TRIAL_GPUS")
    )
    step = {**environ, **make_step_environment(call, tasks, environ)}
    each = [
        {**step, **make_task_environment(task, tasks, node), **_assign_gpus(task, tasks, call, environ), **own}
        for task in range(tasks)
    ]
    if tasks == 1:
        _exec_command(command, {**each[0], "SLURM_TASK_PID": str(os.getpid())}, chdir)
    sys.exit(_run_tasks(command, each, chdir))


def _exec_container_task(call: SrunCall, shims: str, environ: dict[str, str]) -> NoReturn:
    from slurmwrap.prerun.trial.container_shim import start_srun_container

    arguments, inside = start_srun_container(call, "srun", environ)
    os.environ.update(inside)
    _exec_real_program("srun", shims, arguments)


def _parse_number(name: str) -> int:
    text = os.environ.get(f"SLURMWRAP_{name}", "")
    return int(text) if text.isdigit() and int(text) else 1


def _count_mpi_tasks(call: MpiCall, environ: Mapping[str, str]) -> int:
    if call.processes is None:
        return _parse_number("TRIAL_TASKS")
    return max(1, min(_parse_number("TRIAL_GPUS"), -(-call.processes // _parse_number("JOB_NODES"))))


def _assign_gpus(task: int, tasks: int, call: SrunCall, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with a task's own GPUs, if srun would bind them (--gpus-per-task or --gpu-bind)."""
    bound = any(call.given(name) for name in ("gpus-per-task", "gpu-bind")) or "SLURM_GPUS_PER_TASK" in environ
    visible = [device for device in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    shares = {"SLURMWRAP_TRIAL_GPUS": str(max(1, _parse_number("TRIAL_GPUS") // tasks))}
    if tasks > 1 and bound and len(visible) >= tasks:
        own = slice(task * (len(visible) // tasks), (task + 1) * (len(visible) // tasks))
        shares["CUDA_VISIBLE_DEVICES"] = ",".join(visible[own])
        if "SLURM_JOB_GPUS" in environ:
            shares["SLURM_STEP_GPUS"] = ",".join(environ["SLURM_JOB_GPUS"].split(",")[own])
    return shares


def _run_tasks(command: Sequence[str], each: Sequence[dict[str, str]], chdir: str | None) -> int:
    """Run the tasks in parallel and return srun's exit code, which is the highest of theirs."""
    running = []
    for environment in each:
        pid = os.fork()
        if pid == 0:
            _exec_command(command, {**environment, "SLURM_TASK_PID": str(os.getpid())}, chdir)
        running.append(pid)
    codes, deadline = [], None
    while running and (deadline is None or time.monotonic() < deadline):
        pid, status = os.waitpid(-1, os.WNOHANG if deadline else 0)
        if pid in running:
            running.remove(pid)
            codes.append(_exit_code(status))
            deadline = deadline or (time.monotonic() + LINGER_S if codes[-1] else None)
        elif deadline:
            time.sleep(0.05)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return max(codes)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _get_command(call: SrunCall) -> tuple[str, ...]:
    if not call.given("multi-prog"):
        return call.command
    line = read_first_of_multi_prog(Path(call.command[0]).read_text(encoding="utf-8", errors="replace"))
    return (*shlex.split(line or "true"), *call.command[1:])


def _exec_real_program(name: str, shims: str, arguments: Sequence[str]) -> NoReturn:
    folders = [f"{shims}/real", *(f for f in os.environ.get("PATH", os.defpath).split(":") if f != shims)]
    found = shutil.which(name, path=":".join((*folders, *_DEFAULT_FOLDERS)))
    if found is None:
        print(f"{name}: command not found", file=sys.stderr)
        sys.exit(127)
    os.execve(found, [name, *arguments], _restore_allocation(os.environ))


def _restore_allocation(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a real launcher: Slurm's variables describe the trial's allocation, not the job's.

    Otherwise srun reads the job's sizes as options, or refuses two units of memory.
    """
    known: dict[str, str | None] = json.loads(environ.get(ALLOCATION) or "{}")
    restored = {name: value for name, value in known.items() if value is not None}
    return {**{name: value for name, value in environ.items() if name not in known}, **restored}


def _add_step_counter(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the step counter on PYTHONPATH and the shims on PATH."""
    inject, path = environ.get("SLURMWRAP_INJECT", ""), environ.get("PYTHONPATH", "")
    shims, programs = environ.get("SLURMWRAP_SHIMS", ""), environ.get("PATH", os.defpath)
    found = dict(environ)
    if inject and inject not in path.split(":"):
        found["PYTHONPATH"] = f"{inject}:{path}".rstrip(":")
    if shims and shims not in programs.split(":"):
        found["PATH"] = f"{shims}:{programs}"
    return found


def _exec_command(command: Sequence[str], environ: Mapping[str, str], chdir: str | None) -> NoReturn:
    environ = _add_step_counter(environ)
    try:
        if chdir:
            os.chdir(chdir)
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        # The message and exit code of slurmstepd (measured on 22.05.8: 2 for a missing program).
        print(f"slurmstepd: error: execve(): {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(error.errno or 2)


if __name__ == "__main__":
    main(sys.argv[1:])
