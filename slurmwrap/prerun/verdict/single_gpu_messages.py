"""Decide why a failure of a trial proves nothing about the real job: a table of messages and a few rules. Pure.

A `fail` stops a job that its owner expects to work. So this module recognizes every failure that one GPU, one node,
another machine or the pre-run itself may have caused; single_gpu_limits.py decides what depends on the number of GPUs.
"""

from __future__ import annotations

import re

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.prerun.trial.trial_environment import NOWHERE
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.python_traceback import TracebackSummary
from slurmwrap.prerun.verdict.single_gpu_limits import (
    Read,
    TrialFailure,
    find_unset_variable,
    is_set_by_launcher,
    may_pass_with_more_processes,
)


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Categories that a trial on one GPU of another node cannot prove against the job itself.
ELSEWHERE = {
    "cuda_init_failed": "this node offers no usable CUDA",
    "cuda_version_mismatch": "driver and runtime of this node do not match; the job's nodes may differ",
    "mpi_error": "MPI ranks need each other",
    "mpi_runtime_failure": "MPI ranks need each other",
    "nccl_error": "communication between processes cannot be tested on one GPU",
    "address_in_use": "a port was taken on this node",
}
_VALUE_ERRORS = ("ValueError", "RuntimeError", "AssertionError", "XlaRuntimeError", "InternalError", "Exception")
_GPU_SHARED = "another process held memory of this GPU"
# Messages that blame the machine, wherever they are printed: (pattern, why).
_MACHINE_MESSAGES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        _any(
            r"no kernel image|only supports? (?:ampere|hopper|volta|turing|ada|blackwell)|compute capability",
            r"cuda capab|not (?:supported|available) (?:on|in|by|for) (?:this|your|the current) (?:gpu|device|arch|"
            r"hardware|machine)|sm_?\d{2,3}\b.*(?:not compatible|unsupported|required|support)",
            r"(?:requires?|needs?|supports?|supported on) .{0,40}(?:ampere|hopper|blackwell|[ahb][12]00|mi[23]\d\d|"
            r"sm_?\d{2,3}\b)",
            r"(?:bf16|bfloat16|fp8|tf32|float8).{0,60}(?:not supported|unsupported|support|only on)|unsupported gpu",
            r"support.{0,20}(?:bf16|bfloat16|fp8|tf32|float8)",
        ),
        "this GPU may be of another type than the job's",
    ),
    (
        _any(r"process \d+ has [\d.]+ [gm]ib memory in use"),
        _GPU_SHARED,
    ),
    (
        _any(
            r"licen[cs]e (?:server|manager|checkout|daemon)|(?:flexnet|flexlm|lmgrd|lmutil|rlm)\b",
            r"licen[cs]es? (?:\w+ ){0,3}(?:in use|exceeded|unavailable|not available)",
        ),
        "a licence server decides this, and it may answer differently when the job runs",
    ),
    (_any(r"\b(?:on|of|by|for) this (?:node|host|machine|system)\b"), "the message concerns this node"),
    (
        _any(r"launch timed out|hardware limit: \d|out of resource: shared memory"),
        "a limit of this GPU, and the job's GPUs may have another",
    ),
    (_any(r"too many open files|\[errno 2[34]\]"), "a limit of this node"),
    (_any(r"read-only file system|\[errno 30\]"), "a file system that is read-only here"),
    (_any(r"disk quota exceeded|no space left on device"), "storage that was full at this moment"),
)
_NO_CUDA = _any(
    r"cuda\.is_available|is_gpu_available|list_physical_devices",
    r"\b(?:needs?|requires?|no|without|expects?) (?:an? )?(?:[\w-]+ )?(?:gpus?|cuda|accelerator)\b",
    r"\b(?:gpus?|cuda)(?: \w+)? (?:is |are |was |were )?(?:not |un)(?:available|found|usable|detected|visible)",
)
# Messages of launchers that were called past the shims and could not get as many resources as in the real job.
_LAUNCHER_REFUSALS = _any(
    r"unable to (?:create|allocate) (?:step|resources)|requested node configuration is not available",
    r"only allocated \d+ nodes? asked for|more processors requested than permitted|not enough slots available",
    r"requested (?:part of )?(?:step|nodes?) .{0,40}not available|invalid (?:job id|node name) specified",
    r"all nodes which are allocated for this job are already filled|HYDU?_\w+|unable to launch .{0,40}remote",
    r"srun: (?:error|fatal): (?!.*\btasks? \d)",
)
# Errors that the content of a file cannot cause.
_CODE_ERRORS = (
    *("AttributeError", "IndentationError", "NameError", "NotImplementedError", "SyntaxError", "TabError"),
    *("TypeError", "UnboundLocalError"),
)
_CHECKPOINT_MESSAGES = _any(
    r"state_dict|checkpoint|size mismatch|missing key|unexpected key|pretrained|no such|not found"
)
_USAGE = _any(r"error: (?:unrecognized arguments|argument \S+|the following arguments are required)|no such option")
_UNBOUND = re.compile(r"(?:^|\s)(\w+): (?:unbound variable|parameter (?:not set|null))", re.M)
# torch's CUDACachingAllocator.cpp and alloc_cpu.cpp, NumPy's _ArrayMemoryError.
_ALLOCATION = re.compile(
    r"(?:[Tt]ried to allocate|Unable to allocate) (?P<size>\d{1,30}(?:\.\d{0,6})?) ?(?P<unit>[KMGTPE]i?B|bytes)",
    re.ASCII,
)
_GPU_CAPACITY = re.compile(r"(?:capacity of |; )(?P<size>\d{1,15}(?:\.\d{0,6})?) (?P<unit>[KMGT]iB)", re.ASCII)
_NAMED_PATH = re.compile(r"""(?:['"`]|\s|^)(/[^'"`\s:,;]{2,400})""")
_MISSING = re.compile(r"no such file or directory|not found|does not exist|cannot find|can't open", re.IGNORECASE)
_NODE_LOCAL_PATH = re.compile(
    r"^/(?:tmp|var/tmp|dev/shm|raid\d*|jobfs|lscratch|[\w-]*(?:local(?!/(?:bin|lib|share|etc))|nvme|ssd)[\w-]*"
    r"|(?:mnt|scratch|data|work|media)/(?:[\w-]*(?:local|nvme|ssd|tmp|resource|disk)[\w-]*|job[._-]?\d+|\d+))(?:/|$)",
    re.IGNORECASE,
)
_SLURMWRAP_FILES = re.compile(r"/slurmwrap_\w+\.py$|/slurmwrap/(?:prerun|inject|cli|host)/|/inject/sitecustomize\.py$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnding:
    """The facts about a failed trial that the rules use."""

    spec: TrialSpec
    result: TrialResult
    diagnosis: Diagnosis
    found: TracebackSummary | None
    read: Read

    @property
    def failure(self) -> TrialFailure:
        """The failure in the form in which single_gpu_limits decides about it."""
        return TrialFailure(
            said=self.said,
            category=self.diagnosis.category,
            found=self.found,
            logs=tuple(tail.text[-16_384:] for tail in self.result.logs),
            read=self.read,
        )

    @property
    def many(self) -> bool:
        """Whether the job has more GPUs or nodes than its trial had."""
        return self.spec.gpus > max(1, self.spec.trial_gpus) or self.spec.nodes > 1

    @property
    def said(self) -> str:
        """The error: the traceback's, or else the lines that the classifier cites, or else the end of the output."""
        if self.found is not None:
            return self.found.error
        cited = "\n".join(c.text for c in self.diagnosis.evidence)
        return cited or "\n".join(tail.text[-4096:] for tail in self.result.logs)

    @property
    def own_code(self) -> list[str]:
        """The user's lines in the traceback, outermost first; the innermost line if none is the user's."""
        if self.found is None:
            return []
        return [f.code for f in self.found.frames if f.own] or [self.found.frames[-1].code]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """The reason why a failure proves nothing about the real job.

    `lasting`: caused by the request of the job itself, so another trial would end in the same way. Otherwise it was
    caused by the node, the time or slurmwrap.
    """

    why: str
    lasting: bool


def find_doubt(
    spec: TrialSpec, result: TrialResult, diagnosis: Diagnosis, found: TracebackSummary | None, read: Read
) -> Doubt | None:
    """Return why the failure may not be the real job's; None if it is. `read` returns the text of a source file."""
    ending = TrialEnding(spec=spec, result=result, diagnosis=diagnosis, found=found, read=read)
    # The first rule that gives a reason decides.
    rules = (
        _doubt_from_slurmwrap,
        _doubt_from_delay,
        _doubt_from_machine,
        _doubt_from_cluster,
        _doubt_from_memory,
        _doubt_from_missing_peers,
        _doubt_from_trial,
        _doubt_from_silence,
    )
    why, rule = next(((why, rule) for rule in rules if (why := rule(ending))), ("", None))
    # A failure is lasting only if the program itself reported it, and no missing file caused it.
    said = found is not None and found.kind != "FileNotFoundError"
    lasting = rule is _doubt_from_memory or (said and rule in (_doubt_from_missing_peers, _doubt_from_trial))
    return Doubt(why=why, lasting=lasting) if why else None


def _doubt_from_slurmwrap(ending: TrialEnding) -> str | None:
    last = ending.found.frames[-1] if ending.found is not None else None
    # A slurmwrap function that wraps a real one passes on the user's own error: open() of a file that does not exist.
    if last is not None and _SLURMWRAP_FILES.search(last.file) and "plain(" not in last.code:
        return "slurmwrap's own code failed in the pre-run"
    if NOWHERE in ending.said or "requested reservation is invalid" in ending.said.lower():
        return "the script submits or cancels jobs, which a pre-run leaves out"
    return None


def _doubt_from_delay(ending: TrialEnding) -> str | None:
    """Doubt a job that starts later, unless its code is wrong: it may find files that are missing or different now."""
    if not ending.spec.delay or _is_code_error(ending):
        return None
    return f"{ending.spec.delay}, and what is missing now may be there when it starts"


def _is_code_error(ending: TrialEnding) -> bool:
    """Return whether the error is the program's own, whatever its files contain.

    A message with None is not: None may stand for a file that was not read.
    """
    found = ending.found
    if found is None:
        return _USAGE.search(ending.said) is not None
    if re.search(r"\bNone(?:Type)?\b", found.message):
        return False
    misused = ending.diagnosis.category == "semantic_error" and not _CHECKPOINT_MESSAGES.search(ending.said)
    return found.kind in _CODE_ERRORS or (misused and found.kind in ("RuntimeError", "ValueError"))


def _doubt_from_machine(ending: TrialEnding) -> str | None:
    if ending.diagnosis.category in ELSEWHERE:
        return ELSEWHERE[ending.diagnosis.category]
    if ending.diagnosis.category == "gpu_oom" and _is_larger_than_the_job(ending):
        return None
    if ending.diagnosis.category == "gpu_oom" and ending.result.gpu_shared:
        return _GPU_SHARED
    # The program's own check for a GPU.
    checks = ending.found is not None and ending.found.kind in _VALUE_ERRORS
    if checks and _NO_CUDA.search("\n".join((ending.said, *ending.own_code[-1:]))):
        return ELSEWHERE["cuda_init_failed"]
    text = "\n".join((ending.said, *(c.text for c in ending.diagnosis.evidence)))
    if why := next((why for pattern, why in _MACHINE_MESSAGES if pattern.search(text)), None):
        return why
    if _MISSING.search(text) and (path := _find_node_local_path(text, ending.spec)):
        return f"{path} is on a disk of the node itself, where the real job may find it"
    return None


def _doubt_from_cluster(ending: TrialEnding) -> str | None:
    diagnosis = ending.diagnosis
    transient = diagnosis.decision in ("retry", "retry_elsewhere") and diagnosis.category != "no_signature"
    if diagnosis.category == "checkpoint_error" and _MISSING.search(ending.said):
        # A missing checkpoint folder is the job's own fault: no one created it.
        return None
    return "caused by the cluster, not by the job" if diagnosis.domain in ("IF", "RS") or transient else None


def _doubt_from_memory(ending: TrialEnding) -> str | None:
    spec = ending.spec
    if _is_larger_than_the_job(ending):
        return None
    if ending.diagnosis.category == "gpu_oom" and ending.many:
        return (
            f"GPU memory ran out on {_format_gpus(spec.trial_gpus)}; "
            f"the job shares its memory over {max(spec.gpus, spec.nodes)}"
        )
    if ending.diagnosis.category == "cpu_oom" and (spec.mem_shrunk or ending.many):
        return "the pre-run had less memory than the job"
    return None


def _is_larger_than_the_job(ending: TrialEnding) -> bool:
    """Return whether one allocation was larger than all GPUs, or all nodes, of the job together.

    However the program shares its memory, the job cannot hold it.
    """
    text = "\n".join((ending.said, *(tail.text[-16_384:] for tail in ending.result.logs)))
    asked = max((_parse_bytes(found) for found in _ALLOCATION.finditer(text)), default=0.0)
    if ending.diagnosis.category == "gpu_oom":
        held = max((_parse_bytes(found) for found in _GPU_CAPACITY.finditer(text)), default=0.0)
        return bool(held) and asked > held * max(1, ending.spec.gpus)
    largest = ending.spec.largest_mem_mib * float(1 << 20)
    return ending.diagnosis.category == "cpu_oom" and bool(largest) and asked > largest * max(1, ending.spec.nodes)


def _parse_bytes(found: re.Match[str]) -> float:
    unit = found["unit"].upper()
    return float(found["size"]) * 1024.0 ** (" KMGTPE".index(unit[0]) if unit[0] in "KMGTPE" else 0)


def _doubt_from_missing_peers(ending: TrialEnding) -> str | None:
    whole = "\n".join((ending.said, *(tail.text[-8192:] for tail in ending.result.logs)))
    if _LAUNCHER_REFUSALS.search(
        whole if ending.found is None or ending.found.kind == "CalledProcessError" else ending.said
    ):
        return "a launcher that the pre-run could not reduce to one GPU asked for more than one GPU's share"
    if ending.many and may_pass_with_more_processes(ending.failure):
        return f"cannot be shown on {_format_gpus(ending.spec.trial_gpus)} (the job has {ending.spec.gpus})"
    return None


def _doubt_from_trial(ending: TrialEnding) -> str | None:
    found, refused = ending.found, ending.result.refused
    if refused and (found is None or any(call.split()[0] in found.error for call in refused if call.split())):
        return f"the script needs '{refused[0]}', which a pre-run leaves out"
    if found is not None and found.kind == "KeyError":
        name = found.message.strip("'")
    else:
        unbound = _UNBOUND.search(ending.said) if found is None else None
        name = unbound[1] if unbound is not None else find_unset_variable(ending.failure)
    if is_set_by_launcher(name, many=ending.many):
        return f"Slurm or a launcher of the real job sets {name}"
    return None


def _doubt_from_silence(ending: TrialEnding) -> str | None:
    if ending.diagnosis.category == "no_signature" and ending.found is None:
        if find_unset_variable(ending.failure):
            return None
        return "nothing that slurmwrap recognises failed" if ending.many or ending.result.signal is not None else None
    if ending.diagnosis.category == "invalid_memory_access" and ending.found is None and ending.many:
        python = any("Fatal Python error" in tail.text for tail in ending.result.logs)
        return None if python else "a program that expects several processes crashed without a message"
    return None


def _find_node_local_path(text: str, spec: TrialSpec) -> str | None:
    # The user's working directories exist on every node.
    shared = {_top_directory(spec.chdir), _top_directory(spec.trial_dir)}
    named = (match[1].rstrip(".)]}") for match in _NAMED_PATH.finditer(text))
    return next((path for path in named if _NODE_LOCAL_PATH.match(path) and _top_directory(path) not in shared), None)


def _top_directory(path: str) -> str:
    return path.split("/")[1] if path.startswith("/") else ""


def _format_gpus(count: int) -> str:
    return "one GPU" if count <= 1 else f"{count} GPUs"
