"""Find requested resources that the user's code does not use: GPUs and tasks without a process, CPUs for workers."""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Iterator, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.command_wrappers import HARMLESS
from slurmwrap.prerun.static.launcher_tasks import parse_launcher_options, parse_srun_call
from slurmwrap.prerun.static.program_text import read_own_program, read_own_text
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.unknown_commands import is_sourcing_environment
from slurmwrap.prerun.static.word_tables import split_word_table
from slurmwrap.sbatch.job_request import CpuUnit, JobRequest, ResourceShape

_OPTION = re.compile(r"--?(num[-_]?workers|workers|dataloader[-_]num[-_]workers|n[-_]workers)(?:=(.*))?$")
# Fewer DataLoader workers than this are never reported.
_MIN_WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How many workers each process starts, and the place of that number; line 0: on the command line."""

    count: int
    file: str = ""
    line: int = 0


def check_loader_workers(
    request: JobRequest, commands: Sequence[StartedProgram], context: StaticContext
) -> Iterator[Finding]:
    """Yield one finding for each number of workers that is too high for the CPUs of the task."""
    reported: set[str] = set()
    for entry in (one.entry for one in commands if one.entry is not None and one.entry.kind != "shell"):
        cpus = _count_cpus(entry, request.shape)
        workers = _find_given_workers(entry) or _find_written_workers(entry, context)
        if cpus is None or workers is None:
            continue
        processes = _count_processes(entry)
        if workers.count * processes <= 2 * cpus or workers.count < _MIN_WORKERS:
            continue
        each = f"{processes} processes with {workers.count} workers" if processes > 1 else f"{workers.count} workers"
        asked = f"the {cpus} CPUs of the task" if cpus > 1 else "one CPU"
        if each in reported:
            continue
        reported.add(each)
        yield Finding(
            severity=Severity.WARNING,
            message=f"{each} share {asked}",
            file=workers.file or context.where(entry),
            line=workers.line or entry.line,
            fix=f"--cpus-per-task={workers.count * processes}, or fewer workers",
        )


def _count_cpus(entry: EntryPoint, shape: ResourceShape) -> int | None:
    """Return the CPUs for one start of the program; None if they cannot be known.

    Without --cpus-per-task it is one, or the site's default number for each GPU (DefCpuPerGPU, slurm.conf(5)).
    """
    if shape.exclusive or shape.cpus is None or shape.cpu_unit is not CpuUnit.PER_TASK:
        return None
    nodes, step = shape.nodes or 1, bool(entry.whole) and os.path.basename(entry.whole[0]) == "srun"  # noqa: PTH119
    if step and any(word.startswith(("-c", "--cpus-per", "--exact", "-n", "--ntasks", "-N")) for word in entry.whole):
        # srun's own options may change the number of CPUs, so the whole request is used.
        return shape.cpus
    tasks = shape.tasks_per_node or -(-(shape.tasks or 1) // nodes)
    return shape.cpus * (1 if step else tasks)


def _count_processes(entry: EntryPoint) -> int:
    options = parse_launcher_options(entry)
    found = next((options[n] for n in ("nproc_per_node", "num_gpus") if n in options), "1")
    return int(found) if re.fullmatch(r"[1-9]\d{0,3}", found) else 1


def _find_given_workers(entry: EntryPoint) -> Workers | None:
    """Return the workers given on the command line, with count 0 if the number is not known; None without option."""
    for word, following in itertools.pairwise((*entry.argv, "")):
        if found := _OPTION.match(word):
            value = found[2] if found[2] is not None else following
            return Workers(count=int(value) if re.fullmatch(r"\d{1,4}", value) else 0)
    return None


def _find_written_workers(entry: EntryPoint, context: StaticContext) -> Workers | None:
    """Return the workers in DataLoader(num_workers=...), or the default of the option for them."""
    program = read_own_program(entry, context)
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
    """Return the number of workers in a call; 0 for any other call."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    wanted = {"DataLoader": "num_workers", "add_argument": "default"}.get(name)
    if name == "add_argument" and not any(
        isinstance(a, ast.Constant) and _OPTION.match(str(a.value)) for a in call.args
    ):
        return 0
    value = next((keyword.value for keyword in call.keywords if keyword.arg == wanted), None)
    return value.value if isinstance(value, ast.Constant) and type(value.value) is int else 0


_GPU_CODE = re.compile(rb"\bimport [^\n#]*\b(torch|tensorflow|keras)\b|\bfrom (torch|tensorflow|keras)\b")
# Any of these words in the code may mean a second GPU, a second process, or a rank.
_MULTI_PROCESS_WORDS = re.compile(
    rb"(?i)distribut|parallel|strategy|accelerat|deepspeed|horovod|lightning|nccl|gloo|fsdp|shard|spawn|multiprocess"
    rb"|concurrent|subprocess|popen|os\.system|os\.fork|world_?size|rank\b|slurm(?!wrap)|mpi4py|device_map|device_ids|devices"
    rb"|device_count|gpus|gpu_?id|n_?gpu|ngpu|num_gpu|multi_?gpu|gpu_?list|cuda:(?!0)|set_device|torch\.cuda\.device\("
    rb"|\.cuda\(\s*(?!non_blocking|async|0?\s*\))|agent\(|sweep|local_id|task_id|node_id"
)
# Signs in the script of several programs at the same time, or of one GPU for each program.
_CONCURRENT_PROGRAMS = re.compile(
    r"(?<![&<>|\\])&(?![&>\d])|\b(xargs|parallel|CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|mps|tmux"
    r"|screen|ssh|pdsh|clush|ray|SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID|mpirun|mpiexec|multi-prog|coproc|agent)\b|%t"
)
_PLAIN_TOOLS = HARMLESS | split_word_table(
    """cp mv rm ln rmdir touch tar unzip zip gzip gunzip rsync scp wget curl git exit cd deactivate break continue
    return basename dirname find du md5sum sha256sum ssh-agent quota lsb_release uname id groups who uptime
    (( nvcc gcc alias dos2unix mktemp tail less column paste rev jq yes timeout nvidia-smi huggingface-cli cmake make"""
)


def check_gpu_use(
    request: JobRequest, commands: Sequence[StartedProgram], text: str, context: StaticContext
) -> Iterator[Finding]:
    """Yield at most one finding for each program."""
    shape = request.shape
    entries = [one.entry for one in commands if one.entry is not None and one.entry.kind != "shell"]
    code = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    if (
        request.hetjob
        or _CONCURRENT_PROGRAMS.search(code)
        or any(one.inner for one in commands)
        or not _is_all_known(commands)
    ):
        return
    if not all(entry.kind in ("python", "module") for entry in entries):
        return
    single = {entry.path: _is_one_gpu_program(entry, context) for entry in entries if _is_concerned(entry, shape)}
    if len(single) < len({entry.path for entry in entries}) or not all(single.values()):
        return
    reported: set[str] = set()
    for entry in reversed(entries):
        for message, fix in _check_entry(entry, shape) if entry.path not in reported else ():
            reported.add(entry.path)
            yield Finding(
                severity=Severity.WARNING, message=message, file=context.where(entry), line=entry.line, fix=fix
            )


def _is_all_known(commands: Sequence[StartedProgram]) -> bool:
    """Return whether only Python and plain tools run. Any other program may use the GPUs, or start one that does."""
    others = [one for one in commands if one.words and one.entry is None]
    return all(
        is_sourcing_environment(one)
        if one.words[0] in ("eval", "source", ".")
        else os.path.basename(one.words[0]) in _PLAIN_TOOLS  # noqa: PTH119
        for one in others
    )


def _is_concerned(entry: EntryPoint, shape: ResourceShape) -> bool:
    return shape.gpus > 1 or count_tasks(entry, shape) > 1


def _is_one_gpu_program(entry: EntryPoint, context: StaticContext) -> bool:
    text = read_own_text(entry, context)
    return text is not None and bool(_GPU_CODE.search(text)) and not _MULTI_PROCESS_WORDS.search(text)


def _check_entry(entry: EntryPoint, shape: ResourceShape) -> Iterator[tuple[str, str]]:
    tasks, name = count_tasks(entry, shape), os.path.basename(entry.path)  # noqa: PTH119
    if tasks > 1:
        yield (
            f"srun starts {tasks} tasks, and each is the same run of {name}: nothing in its code asks which task it is",
            "srun --ntasks=1, or make it distributed (torch.distributed, with ranks from SLURM_PROCID)",
        )
    elif shape.gpus > 1:
        each = shape.gpus_per_node or shape.gpus
        yield (
            f"the job asks for {shape.gpus} GPUs, but this line starts one process, and {name} uses no second one",
            f"ask for one GPU, or use them: torchrun --nproc_per_node={each} with DistributedDataParallel in {name}",
        )


def count_tasks(entry: EntryPoint, shape: ResourceShape) -> int:
    """Return how many times the line starts its program; 1 without srun, or if it cannot be known."""
    call = parse_srun_call(entry)
    if call is None:
        return 1
    given = call.value("ntasks")
    if given is not None or call.given("ntasks-per-node") or call.given("nodelist") or call.given("nodes"):
        return int(given) if given and re.fullmatch(r"\d{1,6}", given) else 1
    nodes = shape.nodes or 1
    return shape.tasks or (shape.tasks_per_node or 1) * nodes
