"""Check launchers against the job's resources: number of processes and nodes, options, and MPI types.

All findings are warnings, because some programs share a GPU between processes on purpose. Pure but for
`check_mpi_types`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.inject import slurmwrap_launcher_options
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest
from slurmwrap.prerun.static.launcher_args import SrunCall, parse_srun
from slurmwrap.prerun.static.shell_words import UNKNOWN, RawWord
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table
from slurmwrap.sbatch.job_request import GpuUnit, JobRequest, ResourceShape
from slurmwrap.sbatch.option_table import BY_NAME

# Any of these in the script may start the launcher on the other nodes.
_SPREADING_WORDS = (
    "srun",
    "ssh",
    "pdsh",
    "mpirun",
    "mpiexec",
    "clush",
    "ray",
    "parallel",
    "SLURM_NODEID",
    "horovodrun",
)


def check_launchers(
    request: JobRequest, commands: Sequence[StartedProgram], context: StaticContext
) -> Iterator[Finding]:
    """Yield findings at the lines of the launchers."""
    entries = [one.entry for one in commands if one.entry is not None and one.entry.kind != "shell"]
    spread = any(word in _SPREADING_WORDS for one in commands for word in (one.entry.whole if one.entry else one.words))
    text = request.script.content
    spread = spread or any(word.encode() in text for word in _SPREADING_WORDS)
    words = text.decode("utf-8", "replace")
    for entry in entries:
        if len(entries) == 1 and not _SHARED_GPU_SIGNS.search(words):
            yield from _make_findings(_check_idle_gpus(entry, request.shape), entry, context)
        yield from _make_findings(_check_entry(entry, request.shape, request, spread, len(entries)), entry, context)


def _make_findings(remarks: Iterator[tuple[str, str]], entry: EntryPoint, context: StaticContext) -> Iterator[Finding]:
    for message, fix in remarks:
        yield Finding(severity=Severity.WARNING, message=message, file=context.where(entry), line=entry.line, fix=fix)


def _check_entry(
    entry: EntryPoint, shape: ResourceShape, request: JobRequest, spread: bool, count: int
) -> Iterator[tuple[str, str]]:
    gpus = _count_gpus_of_a_node(shape)
    options = parse_launcher_options(entry)
    processes = _parse_number(options, "nproc_per_node", "num_gpus")
    call = parse_srun_call(entry)
    if gpus and processes and processes > gpus and not _is_on_cpu(entry, options):
        where = f"--gpus-per-node={processes}" if shape.gpu_unit is not GpuUnit.GRES else f"--gres=gpu:{processes}"
        yield (
            f"{processes} processes on each node for {gpus} GPUs: the ones above {gpus} find none",
            (f"start {gpus}, or ask for {where}"),
        )
    total = _parse_number(options, "num_processes")
    if (
        gpus
        and shape.gpus
        and total
        and entry.kind == "accelerate"
        and total > shape.gpus
        and not _is_on_cpu(entry, options)
    ):
        yield f"--num_processes {total} for {shape.gpus} GPUs of the job", f"--num_processes {shape.gpus}"
    yield from _check_nodes(entry.kind, options, shape, call, spread)
    yield from _check_trainings(entry, options, shape, call)
    yield from _check_steps(call, shape)
    yield from _check_devices(entry, gpus)


def parse_launcher_options(entry: EntryPoint) -> Mapping[str, str]:
    """Return the launcher's own options with their values; names are written with underscores."""
    words = list(entry.whole)
    found = _find_launch(words)
    if found is None:
        return {}
    launcher, first = found
    pairs, _ = slurmwrap_launcher_options.split(launcher, words[first:])
    return {name: _get_value(given) for name, given in pairs}


def _get_value(words: Sequence[str]) -> str:
    return words[1] if len(words) > 1 else words[0].partition("=")[2]


def _parse_number(options: Mapping[str, str], *names: str) -> int:
    return next((int(options[n]) for n in names if re.fullmatch(r"\d{1,6}", options.get(n, ""))), 0)


def _count_gpus_of_a_node(shape: ResourceShape) -> int:
    """Return the GPUs per node; 0 if the request does not fix them."""
    if shape.gpus_per_node:
        return shape.gpus_per_node
    nodes = shape.nodes or (1 if shape.max_nodes is None else 0)
    return shape.gpus // nodes if nodes and shape.gpus and shape.gpus % nodes == 0 else 0


def _is_on_cpu(entry: EntryPoint, options: Mapping[str, str]) -> bool:
    return "cpu" in options or "--cpu" in entry.argv or "gloo" in " ".join(entry.argv)


def parse_srun_call(entry: EntryPoint) -> SrunCall | None:
    """Return the srun command line that starts the program; None if srun does not start it."""
    return parse_srun(entry.whole[1:]) if entry.whole and os.path.basename(entry.whole[0]) == "srun" else None  # noqa: PTH119


def _check_nodes(
    kind: str, options: Mapping[str, str], shape: ResourceShape, call: SrunCall | None, spread: bool
) -> Iterator[tuple[str, str]]:
    """Compare the nodes that the launcher waits for with the nodes of the job."""
    asked = options.get("nnodes", options.get("num_machines", ""))
    least = re.fullmatch(r"(\d+)(:\d+)?", asked)
    has = shape.nodes or 1
    if "nodes" in options:
        return
    first_node_only = call is None and not spread and has > 1
    if first_node_only and (least is None or int(least[1]) < 2) and kind in ("torchrun", "accelerate"):
        others = "the other one stays" if has == 2 else f"the other {has - 1} stay"
        yield (
            f"this line runs on the first of the job's {has} nodes only: {others} idle",
            "put srun before it, with --nnodes=$SLURM_NNODES --rdzv_backend=c10d --rdzv_endpoint=FIRST_NODE:29500, "
            "or ask for --nodes=1",
        )
    if least is None:
        return
    if int(least[1]) > (shape.max_nodes or has):
        yield (
            f"the launcher waits for {least[1]} nodes, the job has {has}",
            f"--nodes={least[1]}, or {has} for the launcher",
        )
    elif int(least[1]) > 1 and call is None and not spread:
        yield f"this line runs on the first node only, and waits for {least[1]} nodes", "put srun before it"


def _check_trainings(
    entry: EntryPoint, options: Mapping[str, str], shape: ResourceShape, call: SrunCall | None
) -> Iterator[tuple[str, str]]:
    """Find torchruns that srun starts next to each other without connecting them."""
    own = entry.whole[: len(entry.whole) - len(entry.argv)]
    if call is None or entry.kind != "torchrun" or any(UNKNOWN in word for word in own):
        return
    nodes = call.value("nodes") or str(shape.nodes or 1)
    tasks = call.value("ntasks") or (
        "" if call.given("ntasks-per-node") or call.given("nodes") else _format_tasks(shape)
    )
    if options.get("nnodes", "1") != "1" or call.given("nodelist") or not re.fullmatch(r"\d{1,6}", tasks):
        return
    if int(tasks) > 1 and re.fullmatch(r"\d{1,6}", nodes):
        where = f"on {nodes} nodes " if int(nodes) > 1 else ""
        yield (
            f"srun starts torchrun {tasks} times {where}without --nnodes: each is a training of its own",
            "one task per node (--ntasks-per-node=1), and torchrun --nnodes=$SLURM_NNODES --rdzv_backend=c10d "
            "--rdzv_endpoint=FIRST_NODE:29500",
        )


def _format_tasks(shape: ResourceShape) -> str:
    """Return the number of tasks that srun starts by default."""
    return str(shape.tasks or (shape.tasks_per_node or 1) * (shape.nodes or 1))


# Signs of several launches at the same time, or of processes that use more than one GPU or none.
_SHARED_GPU_SIGNS = re.compile(
    r"(?<![&<>|\\])&(?![&>\d])|CUDA_VISIBLE_DEVICES|vllm|sglang|tensor|pipeline|model[-_.]?parallel|device_map|PET_|xargs"
    r"|gpu_ids|gpu-ids",
)


def _check_idle_gpus(entry: EntryPoint, shape: ResourceShape) -> Iterator[tuple[str, str]]:
    """Find fewer processes than GPUs."""
    options, call, gpus = parse_launcher_options(entry), parse_srun_call(entry), _count_gpus_of_a_node(shape)
    processes = _parse_number(options, "nproc_per_node", "num_gpus")
    copies = 1
    if call is not None:
        tasks, nodes = call.value("ntasks") or _format_tasks(shape), shape.nodes or 1
        if call.given("ntasks-per-node") or call.given("nodes") or not re.fullmatch(r"\d{1,6}", tasks):
            return
        copies = -(-int(tasks) // nodes)
    if gpus and 0 < processes * copies < gpus and not _is_on_cpu(entry, options) and not entry.contained:
        yield (
            f"{processes * copies} processes on each node for {gpus} GPUs: {gpus - processes * copies} GPUs stay idle",
            f"start {gpus} processes (--nproc_per_node={gpus}), or ask for fewer GPUs",
        )


def _check_steps(call: SrunCall | None, shape: ResourceShape) -> Iterator[tuple[str, str]]:
    if call is None:
        return
    nodes = call.value("nodes") or call.value("N") or ""
    if re.fullmatch(r"\d+", nodes) and int(nodes) > (shape.max_nodes or shape.nodes or 1):
        has = shape.max_nodes or shape.nodes or 1
        yield (
            f"srun asks for {nodes} nodes, the job has {has}",
            f"--nodes={nodes} for the job, or --nodes={has} for srun",
        )
    tasks, wanted = call.value("ntasks") or call.value("n") or "", call.value("gpus-per-task") or ""
    given = shape.gpus
    if re.fullmatch(r"\d+", tasks) and re.fullmatch(r"(?:\w+:)?\d+", wanted) and given:
        total = int(tasks) * int(wanted.rpartition(":")[2])
        if total > given:
            yield f"srun asks for {tasks} tasks with {wanted} GPUs, the job has {given} GPUs", f"at most {given} in all"


def _check_devices(entry: EntryPoint, gpus: int) -> Iterator[tuple[str, str]]:
    """Find a CUDA_VISIBLE_DEVICES that names more devices than a node of the job has."""
    if not entry.devices or not gpus or not re.fullmatch(r"\d+(,\d+)*", entry.devices):
        return
    highest = max(map(int, entry.devices.split(",")))
    if highest >= gpus:
        yield (
            f"CUDA_VISIBLE_DEVICES={entry.devices}: the job sees {gpus} GPUs on a node, 0 to {gpus - 1}",
            "leave it to Slurm, or ask for more GPUs",
        )


# The rest of this module finds unknown options of srun and torchrun, by comparing them with tables of known options.
#
# Site plugins (SPANK) add options to srun, and other releases have other options. So only a name that looks like a
# misspelt known one is reported, as a warning. The table follows srun(1) of Slurm 22.05 to 25.11.
#
# Deadline of `srun --mpi=list` in seconds: it loads plugins and does not contact the controller.
_MPI_LIST_S = 0.5
_SRUN_ONLY = split_word_table(
    """accel-bind bcast bcast-exclude compress cpu-bind cpu_bind disable-status epilog exact external interactive jobid
    kill-on-bad-exit label launch-cmd launcher-opts mem-bind mem_bind mpi msg-timeout multi-prog network no-allocate
    overlap preserve-env prolog pty quit-on-interrupt relative resv-ports send-libs slurmd-debug task-epilog task-prolog
    test-only threads threads-per-core treewidth tres-bind tres-per-task unbuffered verbose whole stepmgr segment
    container container-id container-image container-mounts container-workdir container-name container-save
    container-mount-home no-container-mount-home container-remap-root container-entrypoint container-writable
    container-readonly container-env environment join debugger-test exclusive gpu-bind gpu-freq gpus-per-task help
    usage version input output error chdir mem nodes ntasks cpus-per-task time"""
)


def check_launcher_options(started: Sequence[StartedProgram], context: StaticContext) -> Iterator[Finding]:
    """Yield one finding for each option that looks misspelt."""
    known = frozenset(BY_NAME) | _SRUN_ONLY
    for one in started:
        words = one.entry.whole if one.entry is not None else ()
        if words and os.path.basename(words[0]) == "srun":  # noqa: PTH119
            options = (name for name, _ in parse_srun(words[1:]).options if len(name) > 1)
            yield from _make_option_findings(options, known, "srun", one, context)
        yield from _make_option_findings(
            _list_launcher_names(words), _list_known_options(words), "the launcher", one, context
        )


# "openmpi" is slurmd's old name for "none", which the list does not contain.
_ALWAYS_KNOWN = ("list", "none", "openmpi")


def check_mpi_types(started: Sequence[StartedProgram], context: StaticContext) -> Iterator[Finding]:
    """Yield a finding for `srun --mpi=TYPE` with a type that this machine's srun lacks.

    srun is asked only for a script that uses --mpi.
    """
    for one in started:
        words = one.entry.whole if one.entry is not None else tuple(w.literal or UNKNOWN for w in _get_raw_words(one))
        named = parse_srun(words[1:]).value("mpi") if words and os.path.basename(words[0]) == "srun" else None  # noqa: PTH119
        if not named or UNKNOWN in named or named in _ALWAYS_KNOWN:
            continue
        known = _list_mpi_types(context)
        if known and named not in known:
            yield Finding(
                severity=Severity.WARNING,
                message=f"srun --mpi={named}: the srun of this machine has {', '.join(known)}",
                file=context.where(one.entry) if one.entry is not None else context.script,
                line=one.line,
                fix=f"did you mean --mpi={find_nearest(named, known, 0.5) or known[-1]}? srun --mpi=list shows them",
                category="mpi_error",
            )
            return


def _get_raw_words(program: StartedProgram) -> Sequence[RawWord]:
    return program.raw.words if program.raw is not None else ()


def _list_mpi_types(context: StaticContext) -> tuple[str, ...]:
    """Return the types that `srun --mpi=list` prints (22.05 to 25.11: one per indented line); () if it fails."""
    if context.left() < _MPI_LIST_S:
        return ()
    answer = context.run(["srun", "--mpi=list"], timeout_s=_MPI_LIST_S)
    output = (answer.stdout + b"\n" + answer.stderr).decode("utf-8", "replace")
    if answer.exit_code != 0 or "MPI" not in output:
        return ()
    lines = [line.removeprefix("srun: ") for line in output.splitlines()]
    types = [line.strip() for line in lines if re.fullmatch(r"\s*[a-z][\w.]*", line)]
    more = [word for line in lines if "specific" in line for word in re.findall(r"\bpmix_v\w+", line)]
    return tuple(dict.fromkeys((*types, *more)))


def _find_launch(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the launcher's name and the index of its first own argument; None if no launcher is called."""
    for at, word in enumerate(words):
        if os.path.basename(word) in ("torchrun", "accelerate", "deepspeed"):  # noqa: PTH119
            found = slurmwrap_launcher_options.launcher(list(words[at:]))
        elif word == "-m" and at + 1 < len(words):
            found = slurmwrap_launcher_options.launcher(list(words[at:]), words[at + 1])
            found = (found[0], 2) if found else None
        else:
            continue
        if found:
            return found[0], at + found[1]
    return None


def _list_launcher_names(words: Sequence[str]) -> list[str]:
    found = _find_launch(words)
    if found is None:
        return []
    pairs, _ = slurmwrap_launcher_options.split(found[0], list(words[found[1] :]))
    # An unknown option may have taken the program as its value; later words are then not the launcher's own.
    return [name for name, given in pairs if given[0].startswith("--")]


def _list_known_options(words: Sequence[str]) -> frozenset[str]:
    found = _find_launch(words)
    if found is None:
        return frozenset()
    return (
        slurmwrap_launcher_options.FLAGS[found[0]]
        | slurmwrap_launcher_options.DROPPED[found[0]]
        | slurmwrap_launcher_options.KEPT
    )


def _make_option_findings(
    names: Iterator[str] | list[str], known: frozenset[str], program: str, one: StartedProgram, context: StaticContext
) -> Iterator[Finding]:
    for name in names:
        if name in known or UNKNOWN in name or any(k.startswith(name) for k in known):
            continue
        near = find_nearest(name, known, 0.8)
        if near:
            shown = near.replace("_", "-") if program == "srun" else near
            yield Finding(
                severity=Severity.WARNING,
                message=f"{program} has no option --{name}",
                file=context.script,
                line=one.line,
                fix=f"did you mean --{shown}?",
                category="semantic_error",
            )
