"""DataLoader workers against the CPUs of their task: `--num_workers 16`, or 16 in the user's own code, with one CPU."""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Iterator, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.launcher_tasks import parse_launcher_options
from slurmwrap.prerun.static.program_text import read_own_program
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.sbatch.request import CpuUnit, JobRequest, ResourceShape

_OPTION = re.compile(r"--?(num[-_]?workers|workers|dataloader[-_]num[-_]workers|n[-_]workers)(?:=(.*))?$")
# Workers that no one minds.
_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How many workers each process starts, and where it says so; line 0: on the command line."""

    count: int
    file: str = ""
    line: int = 0


def check_loader_workers(
    request: JobRequest, commands: Sequence[StartedProgram], desk: StaticContext
) -> Iterator[Finding]:
    """One finding for each count of workers."""
    told: set[str] = set()
    for entry in (one.entry for one in commands if one.entry is not None and one.entry.kind != "shell"):
        cpus = _count_cpus(entry, request.shape)
        workers = _find_given_workers(entry) or _find_written_workers(entry, desk)
        if cpus is None or workers is None:
            continue
        processes = _count_processes(entry)
        if workers.count * processes <= 2 * cpus or workers.count < _FEW:
            continue
        each = f"{processes} processes with {workers.count} workers" if processes > 1 else f"{workers.count} workers"
        asked = f"the {cpus} CPUs of the task" if cpus > 1 else "one CPU"
        if each in told:
            continue
        told.add(each)
        yield Finding(
            severity=Severity.WARNING,
            message=f"{each} share {asked}",
            file=workers.file or desk.where(entry),
            line=workers.line or entry.line,
            fix=f"--cpus-per-task={workers.count * processes}, or fewer workers",
        )


def _count_cpus(entry: EntryPoint, shape: ResourceShape) -> int | None:
    """CPUs that one start of the program has; None where that cannot be known.

    Without --cpus-per-task it is one, or as many for each GPU as the site says (DefCpuPerGPU, slurm.conf(5)).
    """
    if shape.exclusive or shape.cpus is None or shape.cpu_unit is not CpuUnit.PER_TASK:
        return None
    nodes, step = shape.nodes or 1, bool(entry.whole) and os.path.basename(entry.whole[0]) == "srun"  # noqa: PTH119
    if step and any(word.startswith(("-c", "--cpus-per", "--exact", "-n", "--ntasks", "-N")) for word in entry.whole):
        # As far as srun does not say otherwise.
        return shape.cpus
    tasks = shape.tasks_per_node or -(-(shape.tasks or 1) // nodes)
    return shape.cpus * (1 if step else tasks)


def _count_processes(entry: EntryPoint) -> int:
    options = parse_launcher_options(entry)
    found = next((options[n] for n in ("nproc_per_node", "num_gpus") if n in options), "1")
    return int(found) if re.fullmatch(r"[1-9]\d{0,3}", found) else 1


def _find_given_workers(entry: EntryPoint) -> Workers | None:
    """On the command line; a count of 0 where what it says is not known."""
    for word, following in itertools.pairwise((*entry.argv, "")):
        if found := _OPTION.match(word):
            value = found[2] if found[2] is not None else following
            return Workers(count=int(value) if re.fullmatch(r"\d{1,4}", value) else 0)
    return None


def _find_written_workers(entry: EntryPoint, desk: StaticContext) -> Workers | None:
    """The number in DataLoader(num_workers=...), or the default of the option that stands for it."""
    program = read_own_program(entry, desk)
    if program is None:
        return None
    found = []
    for reached in program.files:
        source = reached.source
        if (
            source.tree is None
            or not source.mentions(b"orkers")
            or not (reached.sure or source is program.files[0].source)
        ):
            continue
        calls = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
        found += [
            Workers(count=count, file=source.path, line=source.line + node.lineno)
            for node in calls
            if (count := _get_literal(node)) > 0
        ]
    return max(found, key=lambda one: one.count, default=None)


def _get_literal(call: ast.Call) -> int:
    """0 for any other call."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    wanted = {"DataLoader": "num_workers", "add_argument": "default"}.get(name)
    if name == "add_argument" and not any(
        isinstance(a, ast.Constant) and _OPTION.match(str(a.value)) for a in call.args
    ):
        return 0
    value = next((keyword.value for keyword in call.keywords if keyword.arg == wanted), None)
    return value.value if isinstance(value, ast.Constant) and type(value.value) is int else 0
