"""GPUs and tasks of the request that the user's own code does not use: one process for eight GPUs, four times the same
training. All are warnings, and only for programs whose own files can all be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.command_wrappers import HARMLESS
from slurmwrap.prerun.static.launcher_args import SrunCall, parse_srun
from slurmwrap.prerun.static.program_text import read_own_text
from slurmwrap.prerun.static.shell_commands import is_sourcing_environment
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table
from slurmwrap.sbatch.request import JobRequest, ResourceShape

_GPU_CODE = re.compile(rb"\bimport [^\n#]*\b(torch|tensorflow|keras)\b|\bfrom (torch|tensorflow|keras)\b")
# Any of these words may stand for a second GPU, a second process, or a rank.
_SHARES = re.compile(
    rb"(?i)distribut|parallel|strategy|accelerat|deepspeed|horovod|lightning|nccl|gloo|fsdp|shard|spawn|multiprocess"
    rb"|concurrent|subprocess|popen|os\.system|os\.fork|world_?size|rank\b|slurm(?!wrap)|mpi4py|device_map|device_ids|devices"
    rb"|device_count|gpus|gpu_?id|n_?gpu|ngpu|num_gpu|multi_?gpu|gpu_?list|cuda:(?!0)|set_device|torch\.cuda\.device\("
    rb"|\.cuda\(\s*(?!non_blocking|async|0?\s*\))|agent\(|sweep|local_id|task_id|node_id"
)
# Of the script: several programs at once, or each on a GPU of its own.
_BESIDE = re.compile(
    r"(?<![&<>|\\])&(?![&>\d])|\b(xargs|parallel|CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|mps|tmux"
    r"|screen|ssh|pdsh|clush|ray|SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID|mpirun|mpiexec|multi-prog|coproc|agent)\b|%t"
)
_PLAIN = HARMLESS | split_word_table(
    """cp mv rm ln rmdir touch tar unzip zip gzip gunzip rsync scp wget curl git exit cd deactivate break continue
    return basename dirname find du md5sum sha256sum ssh-agent quota lsb_release uname id groups who uptime
    (( nvcc gcc alias dos2unix mktemp tail less column paste rev jq yes timeout nvidia-smi huggingface-cli cmake make"""
)


def check_gpu_use(
    request: JobRequest, commands: Sequence[StartedProgram], text: str, desk: StaticContext
) -> Iterator[Finding]:
    """At most one finding for each program."""
    shape = request.shape
    entries = [one.entry for one in commands if one.entry is not None and one.entry.kind != "shell"]
    code = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    if request.hetjob or _BESIDE.search(code) or any(one.inner for one in commands) or not _is_all_known(commands):
        return
    if not all(entry.kind in ("python", "module") for entry in entries):
        return
    single = {entry.path: _is_one_gpu_program(entry, desk) for entry in entries if _is_concerned(entry, shape)}
    if len(single) < len({entry.path for entry in entries}) or not all(single.values()):
        return
    told: set[str] = set()
    for entry in reversed(entries):
        for message, fix in _check_entry(entry, shape) if entry.path not in told else ():
            told.add(entry.path)
            yield Finding(severity=Severity.WARNING, message=message, file=desk.where(entry), line=entry.line, fix=fix)


def _is_all_known(commands: Sequence[StartedProgram]) -> bool:
    """No program but Python and plain tools: any other may use the GPUs, or start what does."""
    others = [one for one in commands if one.words and one.entry is None]
    return all(
        is_sourcing_environment(one)
        if one.words[0] in ("eval", "source", ".")
        else os.path.basename(one.words[0]) in _PLAIN  # noqa: PTH119
        for one in others
    )


def _is_concerned(entry: EntryPoint, shape: ResourceShape) -> bool:
    return shape.gpus > 1 or count_tasks(entry, shape) > 1


def _is_one_gpu_program(entry: EntryPoint, desk: StaticContext) -> bool:
    text = read_own_text(entry, desk)
    return text is not None and bool(_GPU_CODE.search(text)) and not _SHARES.search(text)


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
    """How many times the line starts its program; 1 without srun, and where it cannot be known."""
    call = _call(entry)
    if call is None:
        return 1
    given = call.value("ntasks")
    if given is not None or call.given("ntasks-per-node") or call.given("nodelist") or call.given("nodes"):
        return int(given) if given and re.fullmatch(r"\d{1,6}", given) else 1
    nodes = shape.nodes or 1
    return shape.tasks or (shape.tasks_per_node or 1) * nodes


def _call(entry: EntryPoint) -> SrunCall | None:
    return parse_srun(entry.whole[1:]) if entry.whole and os.path.basename(entry.whole[0]) == "srun" else None  # noqa: PTH119
