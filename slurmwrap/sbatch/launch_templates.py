"""Compute the variables of a launch template: nodes, GPUs and tasks of the job, and the quoted command line. Pure.

The user's options take precedence: the nodes, GPUs or tasks that they give are kept, and only missing numbers are
computed from the nodes of the partition. No text of the user is put in a comment of the script, because a line break
in it would end the comment.
"""

from __future__ import annotations

import csv
import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.sbatch.command_line import CommandLine
from slurmwrap.sbatch.container_launch import ContainerLaunch
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, Origin, ResourceShape
from slurmwrap.sbatch.option_table import BY_NAME, COMMAND_LINE_ONLY, MAKING
from slurmwrap.sbatch.script_directives import quote_word

# The values that a template may give after `tasks:`.
TASKS = ("node", "gpu", "one")
# These are written from the computed layout; all other options of the call are copied into the script.
_LAYOUT_OPTIONS = frozenset(
    {"gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task"}
)
_REFUSED = {
    "wrap": "The template makes the script, and --wrap would make another one.",
    "gpus-per-socket": "Use --gpus-per-node instead.",
    "tres-per-task": "Use -G or --gpus-per-node instead.",
    "ntasks-per-gpu": "Use --ntasks-per-node instead.",
    "ntasks-per-socket": "Use --ntasks-per-node instead.",
    "ntasks-per-tres": "Use --ntasks-per-node instead.",
    "nodefile": "Use -N instead.",
}
# These concern the call and not the job, so they stay on the command line.
_CALL_OPTIONS = COMMAND_LINE_ONLY | {"parsable", "wait", "test-only"}
_SIGNAL = re.compile(r"(?:(?P<to>[BR]{1,2}):)?(?P<name>\w+)(?:@\d+)?")
_VALUES = re.compile(r"(?P<list>.*?)(?:%(?P<most>[1-9]\d*))?", re.DOTALL)
PLACE = "{}"
# Places in an argument. Only lines of a file have words: {1}, {2}, and {@} for all of them.
_PLACES = re.compile(r"\{\}")
_PLACES_OF_WORDS = re.compile(r"\{(?:[1-9]\d?|@)?\}", re.ASCII)
# The words of a line are its fields in a file with such a name; in any other one they are read as a shell reads them.
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskValues:
    """The values of the array's tasks, in their order. `most`: so many tasks run at a time; "" for no limit.

    `file`: from whose lines they are, "" for --values; then `numbers` are those of the lines.
    """

    values: tuple[str, ...] = ()
    most: str = ""
    file: str = ""
    numbers: tuple[int, ...] = ()

    @property
    def places(self) -> re.Pattern[str]:
        """Return what stands in an argument for a value or for a word of it."""
        return _PLACES_OF_WORDS if self.file else _PLACES


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Equal nodes of the job's partition: how many there are, and what each of them has."""

    count: int
    gpus: int
    cpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLayout:
    """Nodes, GPUs and tasks of a job. `cpus_per_task` None: neither given nor known, so Slurm's default applies."""

    nodes: int
    gpus_per_node: int
    tasks_per_node: int
    cpus_per_task: int | None = None


def compute_job_layout(shape: ResourceShape, tasks: str, kinds: Sequence[NodeKind]) -> JobLayout:
    """Compute nodes, GPUs, tasks and CPUs for a template with one task per `node`, per `gpu`, or `one` in all.

    `kinds`: the nodes of the partition; empty if Slurm was not asked. Raises UsageError for an impossible layout.
    """
    if not shape.gpus:
        raise UsageError("the call asks for no GPU", hint="Give the number that the job needs in all: -G 16")
    if shape.max_nodes not in (None, shape.nodes):
        raise UsageError(f"-N {shape.nodes}-{shape.max_nodes}: a template needs one number of nodes")
    nodes, gpus = _compute_nodes_and_gpus(shape, tasks, kinds)
    if tasks == "one" and nodes > 1:
        raise UsageError(
            f"{nodes} nodes: this template starts one process on one node",
            hint="Ask for the GPUs of one task of the array: -G 1",
        )
    per_node = _compute_tasks_per_node(shape, tasks, nodes, gpus)
    cpus = shape.cpus if shape.cpu_unit is CpuUnit.PER_TASK else _compute_cpus_per_task(gpus, per_node, kinds)
    return JobLayout(nodes=nodes, gpus_per_node=gpus, tasks_per_node=per_node, cpus_per_task=cpus)


def _compute_nodes_and_gpus(shape: ResourceShape, tasks: str, kinds: Sequence[NodeKind]) -> tuple[int, int]:
    if shape.gpus_per_node and shape.gpu_unit in (GpuUnit.PER_NODE, GpuUnit.GRES):
        nodes = shape.nodes or (shape.tasks if tasks == "node" and shape.tasks else 1)
        return nodes, shape.gpus_per_node
    # The request gives a total of GPUs. The number of nodes is the given one, or it follows from GPUs per node or tasks
    # per node, or it is the least number on which the total can be shared evenly.
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
    """Return the least number of nodes of one kind on which so many GPUs can be used in equal shares."""
    if total == 1:
        return 1
    if not kinds:
        raise UsageError(
            "how many GPUs a node has is not known: Slurm shows no node with GPUs here",
            hint="Give it: --gpus-per-node=8 with -N 2, or -G 16 -N 2",
        )
    found = [(nodes, kind) for kind in kinds if (nodes := _split_evenly(total, kind.gpus))]
    enough = [nodes for nodes, kind in found if nodes <= kind.count]
    if enough or found:
        return min(enough or [nodes for nodes, _ in found])
    most = max(kind.gpus for kind in kinds)
    raise UsageError(
        f"{total} GPUs cannot be shared evenly by nodes with {most}",
        hint=f"Ask for {_suggest_totals(total, most)}, or give -N.",
    )


def _split_evenly(total: int, per_node: int) -> int | None:
    """Return the number of nodes for equal shares of at most `per_node` GPUs.

    None if half or more of each node's GPUs would stay unused.
    """
    least = -(-total // per_node)
    return next((nodes for nodes in range(least, 2 * least) if total % nodes == 0), None)


def check_partition_capacity(layout: JobLayout, kinds: Sequence[NodeKind], partition: str) -> None:
    """Raise UsageError if the job needs more than the whole partition has: Slurm refuses it, or it waits forever.

    `kinds`: empty if Slurm was not asked; then the layout is accepted as it is.
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
    """Return one task per node or per GPU. Only a template with one per GPU accepts another number from the user."""
    said = shape.tasks_per_node or (-(-shape.tasks // nodes) if shape.tasks else None)
    if shape.tasks and said and (shape.tasks != said * nodes):
        raise UsageError(f"{shape.tasks} tasks cannot be shared evenly by {nodes} nodes")
    if tasks == "gpu":
        return said or gpus
    if said not in (None, 1):
        what = "starts one task on each node, which starts the processes" if tasks == "node" else "starts one process"
        raise UsageError(
            f"{said} tasks on each node: this template {what}", hint="Leave --ntasks out, or use --template=srun."
        )
    return 1


def _compute_cpus_per_task(gpus: int, tasks: int, kinds: Sequence[NodeKind]) -> int | None:
    """Return the CPUs of one task: the share of a node's CPUs that its GPUs have; None if the nodes are not known."""
    fitting = [kind for kind in kinds if kind.gpus >= gpus]
    if not fitting:
        return None
    return max(1, min(kind.cpus * gpus // kind.gpus for kind in fitting) // tasks)


# --- the variables of the script ------------------------------------------------------------------------------------


def build_template_variables(
    command: CommandLine,
    request: JobRequest,
    layout: JobLayout,
    template: str,
    tasks: str,
    container: ContainerLaunch | None = None,
    lines: TaskValues | None = None,
) -> Mapping[str, object]:
    """Return the variables of a template (docs/templates.md lists them). `container`: what starts the program in one.

    `lines`: those of --values-file. Raises UsageError for a call that no template can handle.
    """
    _check_command(command, request)
    program, given = command.script or "", command.args
    tasks_values = _parse_values(request) if lines is None else lines
    values, most = tasks_values.values, tasks_values.most
    places = {found[0] for word in given for found in tasks_values.places.finditer(word)}
    placed = PLACE in places
    if values and not places:
        option = "values-file" if tasks_values.file else "values"
        raise UsageError(
            f"--{option}: no argument of {program} contains {PLACE}, so nothing would use them",
            hint=f"Write {PLACE} where the value goes: gsub --template=array --{option}=… {program} --lr {PLACE}",
        )
    if placed and tasks == "one" and not values and request.value("array") is None:
        raise UsageError(
            f"{PLACE} stands for the array's index, but there is no array", hint="Give --array=0-9 or --values=1,2,3"
        )
    arguments = " ".join(
        fill_in_value(word, tasks_values.places) if tasks == "one" else quote_for_bash(word) for word in given
    )
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
        "values": tuple(quote_for_bash(value) for value in values) if placed else (),
        "words": tuple(" ".join(map(quote_for_bash, one)) for one in _split_lines(tasks_values, places - {PLACE})),
        "placed": placed,
        "array": array,
        "directives": tuple(_list_directives(request, layout, array, leave_out={"container"} if container else set())),
        "container": container.runtime if container else "",
        "container_options": container.options if container else "",
        "contain": container.prefix if container else "",
        "summary": format_layout_summary(template, layout),
    }


def format_layout_summary(template: str, layout: JobLayout) -> str:
    """Return one line that describes the layout of the job."""
    nodes = "1 node" if layout.nodes == 1 else f"{layout.nodes} nodes"
    gpus = "1 GPU" if layout.gpus_per_node == 1 else f"{layout.gpus_per_node} GPUs"
    each = "" if layout.nodes == 1 else " each"
    tasks = "1 task" if layout.tasks_per_node == 1 else f"{layout.tasks_per_node} tasks"
    return f"Template {template}: {nodes} with {gpus} and {tasks}{each}."


def _check_command(command: CommandLine, request: JobRequest) -> None:
    if command.hetjob or request.hetjob:
        raise UsageError("a template cannot make a heterogeneous job (`:`)")
    check_options(request)


def check_options(request: JobRequest) -> None:
    """Raise UsageError for an option that no template can handle."""
    for option, way_out in _REFUSED.items():
        if request.setting(option) is not None:
            raise UsageError(f"--{option} does not go with --template", hint=way_out)


def _parse_values(request: JobRequest) -> TaskValues:
    """Return the values of --values."""
    text = request.own.values
    if text is None:
        return TaskValues()
    _check_numbering(request, "values", "a,b,c%2")
    content, most = split_limit(text)
    values = tuple(content.split(","))
    if "" in values:
        raise UsageError(f"--values={text}: one of them is empty", hint="--values=1e-4,3e-4,1e-3")
    return TaskValues(values=values, most=most)


def split_limit(text: str) -> tuple[str, str]:
    """Return (list or file, how many tasks may run at a time) of the value of --values or --values-file."""
    found = _VALUES.fullmatch(text)
    # The pattern matches any text.
    assert found is not None
    return found["list"], found["most"] or ""


def _check_numbering(request: JobRequest, option: str, example: str) -> None:
    if request.value("array") is not None:
        raise UsageError(
            f"--{option} and --array both number the tasks",
            hint=f"Leave --array out; --{option}={example} runs two at a time.",
        )


def parse_value_lines(text: str, file: str, most: str, request: JobRequest) -> TaskValues:
    """Return the lines of a file as values, without empty lines and those that begin with #. UsageError without any."""
    _check_numbering(request, "values-file", f"{file}%2")
    if request.own.values is not None:
        raise UsageError("--values and --values-file both give the values", hint="Leave out one of the two.")
    lines = [(at, line.strip(" \r")) for at, line in enumerate(text.split("\n"), start=1)]
    lines = [(at, line) for at, line in lines if line.strip() and not line.startswith("#")]
    if not lines:
        raise UsageError(f"--values-file={file}: no line of it has a value", hint="Write a line for each task.")
    numbers, values = zip(*lines, strict=True)
    return TaskValues(values=values, most=most, file=file, numbers=numbers)


def _split_lines(lines: TaskValues, places: Collection[str]) -> Iterator[list[str]]:
    """Yield the words of each line if a place of `places` stands for one; nothing of them is expanded."""
    least = max((int(place[1:-1]) for place in places if place != "{@}"), default=0)
    for number, value in zip(lines.numbers if places else (), lines.values, strict=False):
        try:
            delimiter = _DELIMITERS.get(posixpath.splitext(lines.file)[1].lower())
            words = shlex.split(value) if delimiter is None else next(csv.reader([value], delimiter=delimiter))
        except (ValueError, csv.Error) as error:
            raise UsageError(
                f"{lines.file}, line {number}: {error}", hint=f"Quote it, or use {PLACE} for the whole line."
            ) from None
        if len(words) < least:
            count = _format_count(len(words), "word")
            raise UsageError(f"{lines.file}, line {number}: it has {count}, and {{{least}}} stands for another one")
        yield words


def _parse_signal(request: JobRequest) -> str:
    """Return the signal of --signal, "" without one. Refuse B:, because the batch shell only waits for the program."""
    text = request.value("signal")
    if text is None:
        return ""
    found = _SIGNAL.fullmatch(text)
    if found is None:
        raise UsageError(f"--signal={text} does not have a form that Slurm accepts", hint="--signal=USR1@300")
    if "B" in (found["to"] or ""):
        raise UsageError(
            f"--signal={text}: B: sends the signal to the script alone, which only waits for the program",
            hint=f"Leave B: out, and the program gets the signal: --signal={text.rpartition(':')[2]}",
        )
    return found["name"].upper().removeprefix("SIG")


def _list_directives(
    request: JobRequest, layout: JobLayout, array: str, *, leave_out: Collection[str] = ()
) -> Iterator[str]:
    """Yield the script's #SBATCH lines: the job's name and layout, then all other options of the command line."""
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
    rest = {name: value for name, value in own.items() if name not in {*_LAYOUT_OPTIONS, *_CALL_OPTIONS, *leave_out}}
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
    """Return `word` as one bash word. A carriage return is escaped, or sbatch would refuse the script as a DOS file."""
    if "\r" not in word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\r", "\\r").replace("\n", "\\n")
    return f"$'{escaped}'"


def fill_in_value(word: str, places: re.Pattern[str] = _PLACES) -> str:
    """Return `word` as a bash word in which each place is replaced by the task's value, or by a word of it."""
    filled, at = "", 0
    for found in places.finditer(word):
        name = found[0][1:-1]
        if name == "@" and found[0] != word:
            raise UsageError(f"{word}: {{@}} stands for several arguments", hint="Write it as an argument of its own.")
        before = word[at : found.start()]
        filled += (quote_for_bash(before) if before else "") + ('"$value"' if not name else f'"${{{name}}}"')
        at = found.end()
    return filled + quote_for_bash(word[at:]) if word[at:] or not filled else filled


def list_submission_words(command: CommandLine, environ: Mapping[str, str]) -> list[str]:
    """Return the options of the call that submits the script.

    These are gsub's own options, those that concern the call and not the job, and those that an existing SBATCH_*
    variable would override if they were in the script.
    """
    kept = []
    for one in command.given:
        variables = BY_NAME[one.option].variables if one.option in BY_NAME else ()
        beaten = any(name in environ for name in variables)
        if (one.own and one.option not in MAKING) or one.option in _CALL_OPTIONS or beaten:
            kept.append(f"--{one.option}" if one.value is None else f"--{one.option}={one.value}")
    return kept
