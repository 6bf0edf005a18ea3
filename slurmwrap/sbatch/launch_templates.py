"""What a launch template is given: nodes, GPUs and tasks worked out from the call, the words quoted. Pure.

The user's own words win: what they say of nodes, GPUs or tasks is kept, and only what they leave open follows from the
nodes of their partition. Nothing of them is in a comment of the script, where a line break would end the comment.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.sbatch.command_line import CommandLine
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, Origin, ResourceShape
from slurmwrap.sbatch.option_table import BY_NAME, COMMAND_LINE_ONLY, MAKING
from slurmwrap.sbatch.script_directives import quote_word

TASKS = ("node", "gpu", "one")  # what a template may say after `tasks:`
# Written anew from the numbers; all other options of the call go into the script as they are.
_SHAPING = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task"})
_REFUSED = {
    "wrap": "The template makes the script; --wrap makes another one.",
    "gpus-per-socket": "Say --gpus-per-node in its place.",
    "tres-per-task": "Say -G or --gpus-per-node in its place.",
    "ntasks-per-gpu": "Say --ntasks-per-node in its place.",
    "ntasks-per-socket": "Say --ntasks-per-node in its place.",
    "ntasks-per-tres": "Say --ntasks-per-node in its place.",
    "nodefile": "Say -N in its place.",
}
# They concern the call, not the job: they stay on the command line.
_OF_THE_CALL = COMMAND_LINE_ONLY | {"parsable", "wait", "test-only"}
_SIGNAL = re.compile(r"(?:(?P<to>[BR]{1,2}):)?(?P<name>\w+)(?:@\d+)?")
_VALUES = re.compile(r"(?P<list>.*?)(?:%(?P<most>[1-9]\d*))?", re.DOTALL)
PLACE = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes of the job's partition that are alike: how many there are, and what one has."""

    count: int
    gpus: int
    cpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLayout:
    """How the job lies. `cpus_per_task` None: neither said nor known, so Slurm's default holds."""

    nodes: int
    gpus_per_node: int
    tasks_per_node: int
    cpus_per_task: int | None = None


def compute_job_layout(shape: ResourceShape, tasks: str, kinds: Sequence[NodeKind]) -> JobLayout:
    """Nodes, GPUs, tasks and CPUs for a template whose tasks are one per `node`, one per `gpu`, or `one` in all.

    `kinds`: what the partition has; () where Slurm was not to be asked. UsageError for what cannot be.
    """
    if not shape.gpus:
        raise UsageError("the call asks for no GPU", hint="Say how many the job needs in all: -G 16")
    if shape.max_nodes not in (None, shape.nodes):
        raise UsageError(f"-N {shape.nodes}-{shape.max_nodes}: a template needs one number of nodes")
    nodes, gpus = _compute_nodes_and_gpus(shape, tasks, kinds)
    if tasks == "one" and nodes > 1:
        raise UsageError(
            f"{nodes} nodes: this template starts one process on one node",
            hint="Ask for the GPUs of one task of the array: -G 1",
        )
    per_node = _compute_tasks_per_node(shape, tasks, nodes, gpus)
    cpus = shape.cpus if shape.cpu_unit is CpuUnit.PER_TASK else _share(gpus, per_node, kinds)
    return JobLayout(nodes=nodes, gpus_per_node=gpus, tasks_per_node=per_node, cpus_per_task=cpus)


def _compute_nodes_and_gpus(shape: ResourceShape, tasks: str, kinds: Sequence[NodeKind]) -> tuple[int, int]:
    if shape.gpus_per_node and shape.gpu_unit in (GpuUnit.PER_NODE, GpuUnit.GRES):
        nodes = shape.nodes or (shape.tasks if tasks == "node" and shape.tasks else 1)
        return nodes, shape.gpus_per_node
    total, said = shape.gpus, shape.nodes
    if said is None and shape.gpus_per_node:
        said = -(-total // shape.gpus_per_node)
    if said is None and shape.tasks and shape.tasks_per_node:
        said = -(-shape.tasks // shape.tasks_per_node)
    nodes = said or _find_fewest_nodes(total, kinds)
    if total % nodes:
        raise UsageError(
            f"{total} GPUs cannot be shared evenly by {nodes} nodes", hint=f"Ask for {_suggest_totals(total, nodes)}."
        )
    return nodes, total // nodes


def _find_fewest_nodes(total: int, kinds: Sequence[NodeKind]) -> int:
    """The least number of nodes of one kind that hold so many GPUs in equal shares."""
    if total == 1:
        return 1
    if not kinds:
        raise UsageError(
            "how many GPUs a node has is not known: Slurm shows no node with GPUs here",
            hint="Say it: --gpus-per-node=8 with -N 2, or -G 16 -N 2",
        )
    found = [(nodes, kind) for kind in kinds if (nodes := _split_evenly(total, kind.gpus))]
    enough = [nodes for nodes, kind in found if nodes <= kind.count]
    if enough or found:
        return min(enough or [nodes for nodes, _ in found])
    most = max(kind.gpus for kind in kinds)
    raise UsageError(
        f"{total} GPUs cannot be shared evenly by nodes with {most}",
        hint=f"Ask for {_suggest_totals(total, most)}, or say -N.",
    )


def _split_evenly(total: int, per_node: int) -> int | None:
    """Nodes for equal shares of at most `per_node`; None where that would leave half of each node's GPUs or more."""
    least = -(-total // per_node)
    return next((nodes for nodes in range(least, 2 * least) if total % nodes == 0), None)


def check_room(layout: JobLayout, kinds: Sequence[NodeKind], partition: str) -> None:
    """UsageError for more than the whole partition has: such a job is refused by Slurm, or waits for ever.

    `kinds`: () where Slurm was not to be asked, and all is taken as it is said.
    """
    enough = sum(kind.count for kind in kinds if kind.gpus >= layout.gpus_per_node)
    if not kinds or layout.nodes <= enough:
        return
    all_of_it = sum(kind.count * kind.gpus for kind in kinds)
    nodes = " and ".join(
        f"{_format_count(kind.count, 'node')} with {_format_count(kind.gpus, 'GPU')}" for kind in kinds
    )
    asked = f"{_format_count(layout.nodes, 'node')} with {_format_count(layout.gpus_per_node, 'GPU')}"
    raise UsageError(
        f"{asked}: that is more than partition {partition} has, {nodes}",
        hint=f"Ask for {_format_count(all_of_it, 'GPU')} at most, or for another partition (-p).",
    )


def _format_count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _suggest_totals(total: int, step: int) -> str:
    below = total // step * step
    return f"{below} or {below + step} GPUs" if below else f"{step} GPUs"


def _compute_tasks_per_node(shape: ResourceShape, tasks: str, nodes: int, gpus: int) -> int:
    """One per node or per GPU. Who says another number means another template, but for one per GPU."""
    said = shape.tasks_per_node or (-(-shape.tasks // nodes) if shape.tasks else None)
    if shape.tasks and said and (shape.tasks != said * nodes):
        raise UsageError(f"{shape.tasks} tasks cannot be shared evenly by {nodes} nodes")
    if tasks == "gpu":
        return said or gpus
    if said not in (None, 1):
        what = "starts one task on each node, and that the processes" if tasks == "node" else "starts one process"
        raise UsageError(
            f"{said} tasks on each node: this template {what}", hint="Leave --ntasks out, or take --template=srun."
        )
    return 1


def _share(gpus: int, tasks: int, kinds: Sequence[NodeKind]) -> int | None:
    """CPUs of one task: the share of a node's CPUs that goes with its GPUs; None where the nodes are not known."""
    fitting = [kind for kind in kinds if kind.gpus >= gpus]
    if not fitting:
        return None
    return max(1, min(kind.cpus * gpus // kind.gpus for kind in fitting) // tasks)


# --- the script's words ---------------------------------------------------------------------------------------------


def build_template_variables(
    command: CommandLine, request: JobRequest, layout: JobLayout, template: str, tasks: str
) -> Mapping[str, object]:
    """The variables of a template (docs/templates.md lists them). UsageError for a call that no template can take."""
    _check_command(command, request)
    program, given = command.script or "", command.args
    values, most = _parse_values(request)
    placed = PLACE in " ".join(given)
    if values and not placed:
        raise UsageError(
            f"--values: nothing takes them, since no argument of {program} holds {PLACE}",
            hint=f"Write {PLACE} where the value goes: gsub --template=array --values=… {program} --lr {PLACE}",
        )
    if placed and tasks == "one" and not values and request.value("array") is None:
        raise UsageError(
            f"{PLACE} stands for the array's index, but there is no array", hint="Say --array=0-9 or --values=1,2,3"
        )
    filled = placed and tasks == "one"
    arguments = " ".join(fill_in_value(word) if filled and PLACE in word else quote_for_bash(word) for word in given)
    python = program.endswith(".py")
    plain = quote_for_bash(program if "/" in program or (python and program[:1] != "-") else f"./{program}")
    said = f"{plain} {arguments}".rstrip()
    signal = _parse_signal(request)
    array = request.value("array") or (f"0-{len(values) - 1}" + (f"%{most}" if most else "") if values else "")
    return {
        "template": template,
        "program": said,
        "run": f"python {said}" if python else said,
        "python": python,
        "nodes": layout.nodes,
        "gpus_per_node": layout.gpus_per_node,
        "gpus": layout.nodes * layout.gpus_per_node,
        "tasks_per_node": layout.tasks_per_node,
        "cpus_per_task": None if request.shape.cpu_unit is CpuUnit.PER_GPU else layout.cpus_per_task,
        "time_limit": request.value("time") or "",
        "signal": signal,
        "values": tuple(quote_for_bash(value) for value in values),
        "placed": placed,
        "array": array,
        "directives": tuple(_list_directives(request, layout, array)),
        "summary": format_layout_summary(template, layout),
    }


def format_layout_summary(template: str, layout: JobLayout) -> str:
    """One line: how the job lies."""
    nodes = "1 node" if layout.nodes == 1 else f"{layout.nodes} nodes"
    gpus = "1 GPU" if layout.gpus_per_node == 1 else f"{layout.gpus_per_node} GPUs"
    each = "" if layout.nodes == 1 else " each"
    tasks = "1 task" if layout.tasks_per_node == 1 else f"{layout.tasks_per_node} tasks"
    return f"Template {template}: {nodes} with {gpus} and {tasks}{each}."


def _check_command(command: CommandLine, request: JobRequest) -> None:
    if command.hetjob or request.hetjob:
        raise UsageError("a template makes no heterogeneous job (`:`)")
    check_options(request)


def check_options(request: JobRequest) -> None:
    """UsageError for an option that no template can take."""
    for option, way_out in _REFUSED.items():
        if request.setting(option) is not None:
            raise UsageError(f"--{option} does not go with --template", hint=way_out)


def _parse_values(request: JobRequest) -> tuple[tuple[str, ...], str]:
    """(values of --values, how many at a time)."""
    text = request.own.values
    if text is None:
        return (), ""
    if request.value("array") is not None:
        raise UsageError(
            "--values and --array both number the tasks",
            hint="Leave --array out; --values=a,b,c%2 runs two at a time.",
        )
    found = _VALUES.fullmatch(text)
    # Every text has this form.
    assert found is not None
    values = tuple(found["list"].split(","))
    if "" in values:
        raise UsageError(f"--values={text}: one of them is empty", hint="--values=1e-4,3e-4,1e-3")
    return values, found["most"] or ""


def _parse_signal(request: JobRequest) -> str:
    """The signal of --signal, "" without one. To the batch shell alone (B:) it would help no one: it only waits."""
    text = request.value("signal")
    if text is None:
        return ""
    found = _SIGNAL.fullmatch(text)
    if found is None:
        raise UsageError(f"--signal={text} is none of Slurm's forms", hint="--signal=USR1@300")
    if "B" in (found["to"] or ""):
        raise UsageError(
            f"--signal={text}: B: is for the script alone, which only waits for the program",
            hint=f"Leave B: out, and the program gets it: --signal={text.rpartition(':')[2]}",
        )
    return found["name"].upper().removeprefix("SIG")


def _list_directives(request: JobRequest, layout: JobLayout, array: str) -> Iterator[str]:
    """The script's #SBATCH lines: the job's name and shape first, then whatever else the command line says."""
    stem = posixpath.basename(request.script.word or "job").removesuffix(".py")
    own = {s.option: s.value for s in request.settings if s.origin is Origin.COMMAND_LINE}
    lines: dict[str, str | None] = {"job-name": own.pop("job-name", stem) or stem, "nodes": str(layout.nodes)}
    if request.shape.gpu_unit is GpuUnit.GRES:
        lines["gres"] = own.pop("gres", None) or request.value("gres")
    else:
        kind = f"{request.shape.gpu_type}:" if request.shape.gpu_type else ""
        lines["gpus-per-node"] = f"{kind}{layout.gpus_per_node}"
    lines["ntasks-per-node"] = str(layout.tasks_per_node)
    if layout.cpus_per_task and request.shape.cpu_unit is not CpuUnit.PER_GPU:
        lines["cpus-per-task"] = str(layout.cpus_per_task)
    if array:
        own.pop("array", None)
        lines["array"] = array
    lines["output"] = own.pop("output", None) or ("%x-%A_%a.out" if array else "%x-%j.out")
    rest = {name: value for name, value in own.items() if name not in _SHAPING | _OF_THE_CALL}
    for name, value in {**lines, **rest}.items():
        yield _format_directive(name, value)


def _format_directive(name: str, value: str | None) -> str:
    if value is None:
        return f"#SBATCH --{name}"
    try:
        return f"#SBATCH --{name}=" + quote_word(value).decode(errors="surrogateescape")
    except ValueError:
        raise UsageError(f"--{name}={value!r} cannot be written in a script") from None


def quote_for_bash(word: str) -> str:
    """`word` as one bash word, unchanged. A carriage return would make sbatch take the script for one of DOS."""
    if "\r" not in word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\r", "\\r").replace("\n", "\\n")
    return f"$'{escaped}'"


def fill_in_value(word: str) -> str:
    """A bash word in which each {} is the task's value."""
    return '"$value"'.join(quote_for_bash(part) if part else "" for part in word.split(PLACE))


def list_submission_words(command: CommandLine, environ: Mapping[str, str]) -> list[str]:
    """The words of the call that submits the script: gsub's own options, what concerns the call and not the job, and
    what a SBATCH_* variable that is set would win over in a script."""
    kept = []
    for one in command.given:
        variables = BY_NAME[one.option].variables if one.option in BY_NAME else ()
        beaten = any(name in environ for name in variables)
        if (one.own and one.option not in MAKING) or one.option in _OF_THE_CALL or beaten:
            kept.append(f"--{one.option}" if one.value is None else f"--{one.option}={one.value}")
    return kept
