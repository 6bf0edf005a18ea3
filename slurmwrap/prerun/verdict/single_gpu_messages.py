"""Why a failure of a trial says nothing about the real job. Pure; a table of what software says, and few rules.

A `fail` stops a job that its owner believes in. So everything that one GPU, one node, another machine or the pre-run
itself may have caused is named here; what rests on the number of GPUs is decided in single_gpu_limits.py.
"""

from __future__ import annotations

import re

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.prerun.trial.trial_environment import NOWHERE
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.python_traceback import TracebackSummary
from slurmwrap.prerun.verdict.single_gpu_limits import Read, TrialFailure, needs_company


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Categories that a trial on another node, alone, cannot prove against the job itself.
ELSEWHERE = {
    "cuda_init_failed": "this node offers no usable CUDA",
    "cuda_version_mismatch": "driver and runtime of this node do not fit; the job's nodes may differ",
    "mpi_error": "MPI ranks need each other",
    "mpi_runtime_failure": "MPI ranks need each other",
    "nccl_error": "processes that talk to each other cannot be shown on one GPU",
    "address_in_use": "a port was taken on this node",
}
_BY_VALUE = ("ValueError", "RuntimeError", "AssertionError", "XlaRuntimeError", "InternalError", "Exception")
# The machine's doing, wherever it is said. (pattern, why)
_OF_THE_MACHINE: tuple[tuple[re.Pattern[str], str], ...] = (
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
        "another process held memory of this GPU",
    ),
    (
        _any(
            r"licen[cs]e (?:server|manager|checkout|daemon)|(?:flexnet|flexlm|lmgrd|lmutil|rlm)\b",
            r"licen[cs]es? (?:\w+ ){0,3}(?:in use|exceeded|unavailable|not available)",
        ),
        "a licence server decides this, and it may answer otherwise when the job runs",
    ),
    (_any(r"\b(?:on|of|by|for) this (?:node|host|machine|system)\b"), "it is said of this node"),
    (
        _any(r"launch timed out|hardware limit: \d|out of resource: shared memory"),
        "a limit of this GPU, and the job's may be another",
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
# Launchers that were called past the shims, and could not have as much as the real job.
_NOT_SHRUNK = _any(
    r"unable to (?:create|allocate) (?:step|resources)|requested node configuration is not available",
    r"only allocated \d+ nodes? asked for|more processors requested than permitted|not enough slots available",
    r"requested (?:part of )?(?:step|nodes?) .{0,40}not available|invalid (?:job id|node name) specified",
    r"all nodes which are allocated for this job are already filled|HYDU?_\w+|unable to launch .{0,40}remote",
    r"srun: (?:error|fatal): (?!.*\btasks? \d)",
)
# Errors that no file can be the reason of.
_OF_THE_CODE = (
    *("AttributeError", "IndentationError", "NameError", "NotImplementedError", "SyntaxError", "TabError"),
    *("TypeError", "UnboundLocalError"),
)
_OF_A_CHECKPOINT = _any(r"state_dict|checkpoint|size mismatch|missing key|unexpected key|pretrained|no such|not found")
_USAGE = _any(r"error: (?:unrecognized arguments|argument \S+|the following arguments are required)|no such option")
_LAUNCHER_VARIABLE = re.compile(r"^'?(?:SLURM|PMIX?|OMPI|MV2|I_MPI|HYDRA|PRTE|FLUX|ALPS|LSB|JSM|PALS)_?\w*'?$")
_UNBOUND = re.compile(r"(?:^|\s)(?:SLURM|PMIX?|OMPI|MV2)_\w+: (?:unbound variable|parameter (?:not set|null))", re.M)
_NAMED_PATH = re.compile(r"""(?:['"`]|\s|^)(/[^'"`\s:,;]{2,400})""")
_MISSING = re.compile(r"no such file or directory|not found|does not exist|cannot find|can't open", re.IGNORECASE)
_LOCAL = re.compile(
    r"^/(?:tmp|var/tmp|dev/shm|raid\d*|jobfs|lscratch|[\w-]*(?:local(?!/(?:bin|lib|share|etc))|nvme|ssd)[\w-]*"
    r"|(?:mnt|scratch|data|work|media)/(?:[\w-]*(?:local|nvme|ssd|tmp|resource|disk)[\w-]*|job[._-]?\d+|\d+))(?:/|$)",
    re.IGNORECASE,
)
_OURS = re.compile(r"/slurmwrap_\w+\.py$|/slurmwrap/(?:prerun|inject|cli|host)/|/inject/sitecustomize\.py$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnding:
    """What the rules look at."""

    spec: TrialSpec
    result: TrialResult
    diagnosis: Diagnosis
    found: TracebackSummary | None
    read: Read

    @property
    def failure(self) -> TrialFailure:
        """For the question whether it failed because it was alone."""
        return TrialFailure(
            said=self.said,
            category=self.diagnosis.category,
            found=self.found,
            logs=tuple(tail.text[-16_384:] for tail in self.result.logs),
            read=self.read,
        )

    @property
    def many(self) -> bool:
        """The job has more than its trial had."""
        return self.spec.gpus > max(1, self.spec.trial_gpus) or self.spec.nodes > 1

    @property
    def said(self) -> str:
        """The error itself: the traceback's, else the lines that the classifier cites, else the end of the output."""
        if self.found is not None:
            return self.found.error
        cited = "\n".join(c.text for c in self.diagnosis.evidence)
        return cited or "\n".join(tail.text[-4096:] for tail in self.result.logs)

    @property
    def own_code(self) -> list[str]:
        """The user's lines in the traceback, outermost first; the innermost line where none is theirs."""
        if self.found is None:
            return []
        return [f.code for f in self.found.frames if f.own] or [self.found.frames[-1].code]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why a failure says nothing about the real job. `lasting`: by the job's own shape, so another trial would end
    alike; else it was the node, the moment or slurmwrap."""

    why: str
    lasting: bool


def find_doubt(
    spec: TrialSpec, result: TrialResult, diagnosis: Diagnosis, found: TracebackSummary | None, read: Read
) -> Doubt | None:
    """None where the failure is the real job's as well. `read` gives the text of a source file."""
    ending = TrialEnding(spec=spec, result=result, diagnosis=diagnosis, found=found, read=read)
    rules = (
        _our_fault,
        _of_delay,
        _of_the_machine,
        _of_the_cluster,
        _of_memory,
        _of_company,
        _of_the_trial,
        _of_silence,
    )
    why, rule = next(((why, rule) for rule in rules if (why := rule(ending))), ("", None))
    # By the program itself, and not of a file.
    said = found is not None and found.kind != "FileNotFoundError"
    lasting = rule is _of_memory or (said and rule in (_of_company, _of_the_trial))
    return Doubt(why=why, lasting=lasting) if why else None


def _our_fault(ending: TrialEnding) -> str | None:
    last = ending.found.frames[-1] if ending.found is not None else None
    # A wrapper that calls the real function passes the user's own error on: open() of a file that is not there.
    if last is not None and _OURS.search(last.file) and "plain(" not in last.code:
        return "slurmwrap's own code failed in the trial"
    if NOWHERE in ending.said or "requested reservation is invalid" in ending.said.lower():
        return "the script submits or cancels jobs, which a pre-run leaves out"
    return None


def _of_delay(ending: TrialEnding) -> str | None:
    """A job that starts later may find files that are not there now, or others: only its own code can be wrong."""
    if not ending.spec.delay or _is_of_the_code(ending):
        return None
    return f"{ending.spec.delay}, and what is missing now may be there when it starts"


def _is_of_the_code(ending: TrialEnding) -> bool:
    """Whether the error is the program's own, whatever its files hold. None may stand for a file that was not read."""
    found = ending.found
    if found is None:
        return _USAGE.search(ending.said) is not None
    if re.search(r"\bNone(?:Type)?\b", found.message):
        return False
    misused = ending.diagnosis.category == "semantic_error" and not _OF_A_CHECKPOINT.search(ending.said)
    return found.kind in _OF_THE_CODE or (misused and found.kind in ("RuntimeError", "ValueError"))


def _of_the_machine(ending: TrialEnding) -> str | None:
    if ending.diagnosis.category in ELSEWHERE:
        return ELSEWHERE[ending.diagnosis.category]
    # A check of the program's own.
    checks = ending.found is not None and ending.found.kind in _BY_VALUE
    if checks and _NO_CUDA.search("\n".join((ending.said, *ending.own_code[-1:]))):
        return ELSEWHERE["cuda_init_failed"]
    text = "\n".join((ending.said, *(c.text for c in ending.diagnosis.evidence)))
    if why := next((why for pattern, why in _OF_THE_MACHINE if pattern.search(text)), None):
        return why
    if _MISSING.search(text) and (path := _local_path(text, ending.spec)):
        return f"{path} lies on a disk of the node itself, where the real job may find it"
    return None


def _of_the_cluster(ending: TrialEnding) -> str | None:
    diagnosis = ending.diagnosis
    transient = diagnosis.decision in ("retry", "retry_elsewhere") and diagnosis.category != "no_signature"
    if diagnosis.category == "checkpoint_error" and _MISSING.search(ending.said):
        # A folder that no one made.
        return None
    return "the cluster's doing, not the job's" if diagnosis.domain in ("IF", "RS") or transient else None


def _of_memory(ending: TrialEnding) -> str | None:
    spec = ending.spec
    if ending.diagnosis.category == "gpu_oom" and ending.many:
        return (
            f"GPU memory ran out on {_gpus(spec.trial_gpus)}; "
            f"the job shares its memory over {max(spec.gpus, spec.nodes)}"
        )
    if ending.diagnosis.category == "cpu_oom" and (spec.mem_shrunk or ending.many):
        return "the trial had less memory than the job"
    return None


def _of_company(ending: TrialEnding) -> str | None:
    whole = "\n".join((ending.said, *(tail.text[-8192:] for tail in ending.result.logs)))
    if _NOT_SHRUNK.search(whole if ending.found is None or ending.found.kind == "CalledProcessError" else ending.said):
        return "a launcher that the pre-run could not shrink asked for more than one GPU's share"
    if ending.many and needs_company(ending.failure):
        return f"cannot be shown on {_gpus(ending.spec.trial_gpus)} (the job has {ending.spec.gpus})"
    return None


def _of_the_trial(ending: TrialEnding) -> str | None:
    found, refused = ending.found, ending.result.refused
    if refused and (found is None or any(call.split()[0] in found.error for call in refused if call.split())):
        return f"the script needs '{refused[0]}', which a pre-run leaves out"
    if found is not None and found.kind == "KeyError" and _LAUNCHER_VARIABLE.match(found.message):
        return f"a launcher of the real job sets {found.message}"
    if found is None and _UNBOUND.search(ending.said):
        return "Slurm or a launcher of the real job sets that variable"
    return None


def _of_silence(ending: TrialEnding) -> str | None:
    if ending.diagnosis.category == "no_signature" and ending.found is None:
        return "nothing recognisable failed" if ending.many or ending.result.signal is not None else None
    if ending.diagnosis.category == "invalid_memory_access" and ending.found is None and ending.many:
        python = any("Fatal Python error" in tail.text for tail in ending.result.logs)
        return None if python else "a program that expects company crashed without a word"
    return None


def _local_path(text: str, spec: TrialSpec) -> str | None:
    # Where the user works is there on every node.
    shared = {_top(spec.chdir), _top(spec.trial_dir)}
    named = (match[1].rstrip(".)]}") for match in _NAMED_PATH.finditer(text))
    return next((path for path in named if _LOCAL.match(path) and _top(path) not in shared), None)


def _top(path: str) -> str:
    return path.split("/")[1] if path.startswith("/") else ""


def _gpus(count: int) -> str:
    return "one GPU" if count <= 1 else f"{count} GPUs"
