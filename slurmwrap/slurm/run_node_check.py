"""Check a node in a job that has it alone, and return the node to service if it passes (adapter).

A drained node starts no job, not even one in a maintenance reservation (measured on 22.05). So a reservation of the
caller's without an end keeps all other jobs away, the drain is lifted within it, and the job runs in it. Only after the
node is drained again, or has passed, the reservation is removed: if this program dies in between, the node stays out of
service.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.run_command import CommandResult, run
from slurmwrap.model.cluster import Node, Reservation
from slurmwrap.model.decision import DRAIN_PREFIX, SlurmAction, Verb
from slurmwrap.policy.node_history import CheckedPart, NodeCheck, make_node_check
from slurmwrap.policy.node_return import CHECK_RESERVATION
from slurmwrap.policy.strikes import is_drained_by_slurmwrap
from slurmwrap.protocols import Clock
from slurmwrap.slurm.commands import SlurmCommands, get_output, reject_foreign_drain

JOB_NAME = "slurmwrap-check"
# Seconds until the job must have started, and seconds for its Prolog, its start and its end.
_START_S, _AROUND_S = 60.0, 60.0
_FAILED = "; check failed: "
# Slurm 22.05 appends who set the Reason, and when.
_SET_BY = re.compile(r" \[[^\[\]]*@[^\[\]]*\]$")
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckProgram:
    """The program on the nodes. `python` and `directory` are those of the installed hooks."""

    python: str
    directory: Path
    mounts: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    seconds: float = 180.0

    def make_argv(self, node: Node) -> list[str]:
        """Return the command line that the job runs on `node`."""
        request = {"gpus": node.gpus, "mounts": self.mounts, "skip": self.skip, "seconds": self.seconds}
        zipapp, settings = self.directory / "node_hooks.pyz", self.directory / "hooks.json"
        return [self.python, "-I", "-S", str(zipapp), "check", str(settings), json.dumps(request)]


def read_hook_python(directory: Path) -> str:
    """Return the interpreter with which the hooks in `directory` run. SlurmError if there are none."""
    try:
        lines = (directory / "prolog").read_text(encoding="utf-8").splitlines()
        return next(shlex.split(line.partition("=")[2])[0] for line in lines if line.startswith("python="))
    except (OSError, StopIteration, ValueError, IndexError):
        raise SlurmError(
            f"{directory}: the hooks cannot be read", hint="The check is a part of them: `slurmwrap hooks install`."
        ) from None


def check_node(
    node: Node,
    program: CheckProgram,
    slurm: SlurmCommands,
    clock: Clock,
    *,
    reservations: Sequence[Reservation] = (),
    resume: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> NodeCheck:
    """Check `node` and return the result. With `resume` a drain of slurmwrap's is lifted if the check passes.

    Otherwise the node has the state that it had, and after a failed check the drain's Reason says what failed.
    `reservations`: those of a snapshot that was read just now. SlurmError before anything is changed if the node cannot
    be checked, and with the reservation left if the node could not be drained again.
    """
    _reject_unready(node)
    caller = pwd.getpwuid(os.geteuid()).pw_name
    name = CHECK_RESERVATION + node.name
    call = _ScontrolCaller(environ=environ)
    drained = is_drained_by_slurmwrap(node)
    left = next((one for one in reservations if one.name == name), None)
    if left is not None:
        if clock.now() - left.start < program.seconds + _START_S + 2 * _AROUND_S:
            raise SlurmError(f"node {node.name} is being checked", hint="`slurmwrap nodes show` has the result soon.")
        # That check was interrupted, maybe with the drain lifted.
        drained = True
    elif resume:
        reject_foreign_drain(SlurmAction(verb=Verb.RESUME, target=node.name), node)
    if left is None:
        call("create", f"reservation={name}", f"Users={caller}", f"Nodes={node.name}", "StartTime=now",
             "Duration=UNLIMITED", "Flags=MAINT,IGNORE_JOBS")  # fmt: skip
    reason = make_kept_reason(node.reason) if drained else ""
    check: NodeCheck | None = None
    try:
        if is_drained_by_slurmwrap(node):
            slurm.apply(SlurmAction(verb=Verb.RESUME, target=node.name, reason="to check it in a reservation"))
        check = _run_check_job(node, program, name, clock, caller, environ)
    finally:
        if drained and not (resume and check is not None and check.passed):
            _drain_again(node.name, add_check_to_reason(reason, check), slurm)
        call("delete", f"reservation={name}")
    return check


def make_kept_reason(reason: str) -> str:
    """Return the Reason of a drain without what Slurm and an earlier check appended."""
    kept = _SET_BY.sub("", reason).partition(_FAILED)[0]
    return kept if kept.startswith(DRAIN_PREFIX) else f"{DRAIN_PREFIX} a check was interrupted"


def add_check_to_reason(reason: str, check: NodeCheck | None) -> str:
    """Return the Reason with what a check found, if it failed."""
    if check is None or check.passed:
        return reason
    failed = ", ".join(part.name for part in check.parts if part.state == "fail")
    return f"{reason}{_FAILED}{failed}"[:_LONGEST_REASON]


def make_srun_argv(node: Node, program: CheckProgram, reservation: str) -> list[str]:
    """Return the command line of the job, which has the whole node with all of its GPUs."""
    minutes = math.ceil((program.seconds + _AROUND_S) / 60)
    return [
        "srun", "--quiet", f"--immediate={_START_S:.0f}", f"--reservation={reservation}", f"--nodelist={node.name}",
        f"--partition={node.partitions[0]}", "--nodes=1", "--ntasks=1", "--exclusive", "--mem=0", f"--time={minutes}",
        *([f"--gres=gpu:{node.gpus}"] if node.gpus else []), f"--job-name={JOB_NAME}", "--chdir=/", "--export=NONE",
        "--input=none", *program.make_argv(node),
    ]  # fmt: skip


def _reject_unready(node: Node) -> None:
    """Raise SlurmError if the node is not free for a check, or is drained by someone else."""
    if "DRAIN" in node.flags and not is_drained_by_slurmwrap(node):
        raise SlurmError(
            f"node {node.name} was not drained by slurmwrap: {node.reason or 'no reason'}",
            hint="slurmwrap lifts only its own drains, and a drained node starts no job.",
        )
    if node.state not in ("IDLE", "MIXED", "ALLOCATED") or node.flags & {"NOT_RESPONDING", "FAIL", "REBOOT"}:
        state = "+".join((node.state, *sorted(node.flags)))
        raise SlurmError(f"node {node.name} is {state}: it starts no job", hint="Bring its slurmd up first.")
    if node.cpus_alloc or node.gpus_used:
        raise SlurmError(
            f"jobs still run on node {node.name}, and the check needs the whole node",
            hint=f"`squeue -w {node.name}` shows them; check the node after they have ended.",
        )
    if not node.partitions:
        raise SlurmError(f"node {node.name} is in no partition: it starts no job")


def _run_check_job(
    node: Node, program: CheckProgram, reservation: str, clock: Clock, caller: str, environ: Mapping[str, str]
) -> NodeCheck:
    """Return what the job reports. A job that could not run or reported nothing is a failed check."""
    # Inside a job, srun would start a step of that job.
    own = {name: value for name, value in environ.items() if not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))}
    own |= {name: environ[name] for name in ("SLURM_CONF",) if name in environ}
    timeout_s = _START_S + program.seconds + 2 * _AROUND_S
    result = run(make_srun_argv(node, program, reservation), timeout_s=timeout_s, environ={**own, "LC_ALL": "C"})
    record = parse_record(result.stdout, node.name)
    if record is None:
        run(["scancel", f"--name={JOB_NAME}", f"--nodelist={node.name}"], timeout_s=10, environ={**own, "LC_ALL": "C"})
        parts: tuple[CheckedPart, ...] = (CheckedPart(name="job", state="fail", text=_explain(result)),)
        return make_node_check(node.name, clock.now(), caller, parts)
    parts = tuple(
        CheckedPart(name=str(one["name"]), state=str(one["state"]), text=str(one["text"])) for one in record["checks"]
    )
    return make_node_check(node.name, clock.now(), caller, parts, reboot=record.get("reboot") is True)


def parse_record(output: bytes, node: str) -> dict[str, Any] | None:
    """Return the record that the program printed on `node`; None if its last line is none."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.startswith("{")]
    try:
        found = json.loads(lines[-1])
        complete = found["version"] == 1 and found["node"] == node
        return found if complete and all({"name", "state", "text"} <= one.keys() for one in found["checks"]) else None
    except (IndexError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _explain(result: CommandResult) -> str:
    lines = [line.strip() for line in result.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    if result.timed_out:
        return "the job did not end in time"
    if lines:
        return lines[-1][:_LONGEST_REASON]
    return "the job reported nothing: are the hooks on the node of an older release? (slurmwrap hooks install)"


def _drain_again(node: str, reason: str, slurm: SlurmCommands) -> None:
    """Drain the node. A drain that someone else requested meanwhile stays, with its Reason."""
    try:
        slurm.apply(SlurmAction(verb=Verb.DRAIN, target=node, value=reason, reason="its check did not pass"))
    except SlurmError as error:
        now = next((one for one in slurm.snapshot().nodes if one.name == node), None)
        if now is None or "DRAIN" not in now.flags:
            raise SlurmError(
                f"node {node} could not be drained again: {error}",
                hint=f"It stays in the reservation {CHECK_RESERVATION}{node}: drain it, then delete the reservation.",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScontrolCaller:
    environ: Mapping[str, str]

    def __call__(self, *words: str) -> None:
        get_output(run(["scontrol", *words], timeout_s=10.0, environ={**self.environ, "LC_ALL": "C"}), 10.0)
