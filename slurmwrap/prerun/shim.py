"""srun and mpirun inside a trial: starts one task of their command in place. Edge: replaces its own process.

Started by shims/launch as `python -I -m slurmwrap.prerun.shim NAME SHIMS_DIR ARGUMENTS...`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn

from slurmwrap.prerun.entry import is_program
from slurmwrap.prerun.launch import SrunCall, exported, first_of_multi_prog, one_task_srun, parse_mpirun, parse_srun

# What srun gives to task 0 of 1 (srun(1), OUTPUT ENVIRONMENT VARIABLES).
TASK_0: Mapping[str, str] = {
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_STEP_ID"), "0"),
    **dict.fromkeys(("SLURM_STEPID",), "0"),
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"), "1"),
    **dict.fromkeys(("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), "1"),
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
}
# What Open MPI's and MVAPICH's launchers give to rank 0 of 1; an MPI library finds no daemon and starts alone.
RANK_0: Mapping[str, str] = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "MV2_COMM_WORLD_RANK": "0",
    "MV2_COMM_WORLD_SIZE": "1",
    "MV2_COMM_WORLD_LOCAL_RANK": "0",
}


def main(argv: Sequence[str]) -> NoReturn:
    """`argv`: name, directory of the shims, arguments."""
    name, shims, *arguments = argv
    environ = dict(os.environ)
    if name == "srun":
        _srun(arguments, shims, environ)
    call = parse_mpirun(arguments, is_program)
    if not call.command:
        _real(name, shims, arguments)
    _start(call.command, {**environ, **RANK_0, **dict(call.environment)}, call.chdir)


def _srun(arguments: Sequence[str], shims: str, environ: dict[str, str]) -> NoReturn:
    call = parse_srun(arguments)
    if not call.command or call.given("version") or call.given("help"):
        _real("srun", shims, arguments)
    if call.in_container:  # only srun's plugins can start it; the step ends with the pre-run's job
        _real("srun", shims, one_task_srun(call, mount=environ["SLURMWRAP_TRIAL_DIR"]))
    node = environ.get("SLURMD_NODENAME") or environ.get("SLURM_JOB_NODELIST", "localhost")
    task = {**TASK_0, "SLURM_STEP_NODELIST": node, "SLURM_TASK_PID": str(os.getpid())}
    _start(_command(call), {**environ, **task, **exported(call.value("export"))}, call.value("chdir"))


def _command(call: SrunCall) -> tuple[str, ...]:
    if not call.given("multi-prog"):
        return call.command
    line = first_of_multi_prog(Path(call.command[0]).read_text(encoding="utf-8", errors="replace"))
    return (*shlex.split(line or "true"), *call.command[1:])


def _real(name: str, shims: str, arguments: Sequence[str]) -> NoReturn:
    folders = [f for f in os.environ.get("PATH", os.defpath).split(":") if f != shims]
    found = shutil.which(name, path=":".join(folders))
    if found is None:
        print(f"{name}: command not found", file=sys.stderr)
        sys.exit(127)
    os.execv(found, [name, *arguments])


def _start(command: Sequence[str], environ: MutableMapping[str, str], chdir: str | None) -> NoReturn:
    inject, path = environ.get("SLURMWRAP_INJECT", ""), environ.get("PYTHONPATH", "")
    if inject and inject not in path.split(":"):
        environ["PYTHONPATH"] = f"{inject}:{path}".rstrip(":")
    try:
        if chdir:
            os.chdir(chdir)
        os.execvpe(command[0], list(command), environ)
    except OSError as error:  # slurmstepd's own words and exit codes (measured on 22.05.8: 2 for a missing program)
        print(f"slurmstepd: error: execve(): {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(error.errno or 2)


if __name__ == "__main__":
    main(sys.argv[1:])
