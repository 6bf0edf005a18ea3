"""Find the cause that a node's kernel log, NVML, or its network ports show for the end of a run. Pure.

Kernel lines decide where the application's text is ambiguous (an unspecified launch failure, a bare NCCL time-out).
They do not turn a syntax error into a hardware fault. Only kernel, Slurm and NVML may blame a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurmwrap.diagnosis.amdgpu import parse_amdgpu
from slurmwrap.diagnosis.network_facts import list_broken_links
from slurmwrap.diagnosis.signatures import SignatureSet, compile_pattern
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.diagnosis.xid import XidEvent, get_action, get_category, get_meaning, is_conclusive, parse_xids
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.evidence import Evidence, KernelLine

# Categories of application errors that are too vague to outweigh the kernel.
AMBIGUOUS = frozenset(
    (
        "cuda_failure",
        "invalid_memory_access",
        "nccl_error",
        "core_dump",
        "cuda_init_failed",
        "mpi_error",
        "mpi_runtime_failure",
        "traceback_from_crash",
        "no_signature",
        "gpu_ecc_error",
        "gpu_hardware",
        "storage_io",
        "node_failure",
        "network_error",
    )
)
# Failures that a broken link of a node can explain, and the words that decide where the category alone does not.
LINK_CATEGORIES = frozenset(("nccl_error", "mpi_runtime_failure", "mpi_error", "network_error"))
_LINK_WORDS = re.compile(
    r"UCX|UCT|[Tt]ransport|[Rr]etry|\b[Ii][Bb]V?_|ibv_|verbs|openib|[Tt]im(?:ed|e) ?-?out|[Cc]onnection|btl|OFI|MTL"
)
_NOT_OF_LINKS = re.compile(
    r"[Ii]nvalid (?:usage|argument)|ncclInvalid|[Dd]uplicate GPU|out of memory|unhandled cuda error|no socket interface"
)
# Lines of drivers that name a process. The tables of Xids and of amdgpu judge them: a signature could match the name,
# which a user chooses ("NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=GSP timed out").
_IN_TABLES = ("NVRM: Xid ", "amdgpu ")
_NODE_ACTIONS = ("RESET", "REBOOT", "DRAIN")
# A number in place of a word is an action that the hook's NVML binding does not know (node_hooks/nvml.py).
_NVML = re.compile(
    r"(?:NVML|amdgpu) on ([\w.-]{1,64}): (?:GPU \S+ \([^)]{0,40}\) )?(?:asks for recovery action ([a-z]\w{2,40})"
    r"|(is lost)|(has a failed row remapping)|(has new uncorrectable errors)|(the driver hangs))"
)


_NVML_MEANINGS = {
    "lost": "the GPU is lost",
    "row_remapping": "a row of its memory could not be remapped",
    "errors": "its memory had uncorrectable errors while the job ran",
    "driver_hung": "its driver does not answer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCause:
    """A cause that the kernel log shows. `rank` orders causes, 0 first.

    0: conclusive; 1: hardware or host trouble; 2: informational; 3: the program's fault.
    """

    category: str
    signature: str
    node: str
    line: int  # 1-based, among the kernel lines
    text: str
    meaning: str
    conclusive: bool
    rank: int
    decision: str = ""
    advice: str = ""
    source: str = "kernel"


def find_kernel_cause(
    lines: tuple[KernelLine, ...], signatures: SignatureSet, nvml: tuple[str, ...] = ()
) -> KernelCause | None:
    """Return the most important cause, of equal ones the earliest; None if no line matters.

    `nvml`: Evidence.nvml, the driver's own report at the job's end.
    """
    causes = [*_list_xid_causes(lines), *_list_amdgpu_causes(lines)]
    causes += [*_list_signature_causes(lines, signatures), *_list_nvml_causes(nvml)]
    cause = min(causes, key=lambda cause: (cause.rank, cause.line), default=None)
    return _find_reason_for_recovery(cause, causes) if cause is not None else None


def find_link_cause(evidence: Evidence, category: str, text: str) -> KernelCause | None:
    """Return the broken link that explains an error of `category` with this text; None without one.

    If links of several nodes broke, a switch is more likely at fault than one of them: None. Ranks on one node do not
    use its links.
    """
    if category not in LINK_CATEGORIES or _NOT_OF_LINKS.search(text):
        return None
    if category != "network_error" and len(evidence.nodes) == 1:
        return None
    if category == "mpi_error" and not _LINK_WORDS.search(text):
        return None
    events = list_broken_links(evidence.network)
    if category == "network_error":
        # Services outside the cluster are reached by Ethernet.
        events = [event for event in events if ": Ethernet " in event.text]
    if len({event.node for event in events}) != 1:
        return None
    event = events[0]
    what = event.text.partition(": ")[2]
    return KernelCause(
        category="node_failure",
        signature=f"network.link_{event.kind}",
        node=event.node,
        line=0,
        text=event.text,
        meaning=what,
        conclusive=False,
        rank=2,
        advice=f"Nothing to fix in the program: on {event.node}, {what}; the job must run on another node.",
        source="network",
    )


def _find_reason_for_recovery(cause: KernelCause, causes: list[KernelCause]) -> KernelCause:
    """Return the earlier Xid for which the driver asks for a recovery action (Xid 154), else `cause` itself."""
    if cause.signature != "kernel.xid_154":
        return cause
    earlier = [one for one in causes if one.source == "kernel" and one.rank <= 2 and one.line < cause.line]
    first = min(earlier, key=lambda one: one.line, default=None)
    return cause if first is None else replace(first, rank=cause.rank, conclusive=cause.conclusive, node=cause.node)


def _list_xid_causes(lines: tuple[KernelLine, ...]) -> Iterable[KernelCause]:
    for event in parse_xids(line.text for line in lines):
        if category := get_category(event):
            yield _make_xid_cause(event, category, lines[event.line - 1].node)


def _make_xid_cause(event: XidEvent, category: str, node: str) -> KernelCause:
    conclusive, action = is_conclusive(event), get_action(event)
    infrastructure = CATEGORIES[category].domain == "IF"
    rank = 0 if conclusive and event.code != 154 else 1 if action in _NODE_ACTIONS else 2 if infrastructure else 3
    return KernelCause(
        category=category,
        signature=f"kernel.xid_{event.code}" if event.code > 0 else f"kernel.sxid_{-event.code}",
        node=node if action != "APP" else "",
        line=event.line,
        text=event.text,
        meaning=get_meaning(event),
        conclusive=conclusive,
        rank=rank,
    )


def _list_amdgpu_causes(lines: tuple[KernelLine, ...]) -> Iterable[KernelCause]:
    for event in parse_amdgpu(line.text for line in lines):
        if not event.category:
            continue
        rank = 0 if event.conclusive else 1 if event.action in _NODE_ACTIONS else 3 if event.action == "APP" else 2
        yield KernelCause(
            category=event.category,
            signature=f"kernel.amdgpu_{event.kind}",
            node=lines[event.line - 1].node if event.action != "APP" else "",
            line=event.line,
            text=event.text,
            meaning=event.meaning,
            conclusive=event.conclusive,
            rank=rank,
        )


def _list_signature_causes(lines: tuple[KernelLine, ...], signatures: SignatureSet) -> Iterable[KernelCause]:
    needles = signatures.needles["kernel"]
    for number, line in enumerate(lines, 1):
        if line.text.startswith(_IN_TABLES):
            continue
        wanted = sorted({index for needle in needles if needle.literal in line.text for index in needle.wanted_by})
        for signature, pattern in (signatures.ranked[index] for index in wanted):
            if signature.role == "root" and compile_pattern(pattern).search(line.text[:2000]):
                infrastructure = CATEGORIES[signature.category].domain == "IF"
                yield KernelCause(
                    category=signature.category,
                    signature=signature.id,
                    node=line.node if infrastructure else "",
                    line=number,
                    text=line.text.strip(),
                    meaning=CATEGORIES[signature.category].meaning,
                    conclusive=False,
                    rank=1 if signature.weight >= 70 else 3,
                    decision=signature.decision,
                    advice=signature.advice,
                )
                break


def _list_nvml_causes(lines: tuple[str, ...]) -> Iterable[KernelCause]:
    """Yield the lines of node_facts.py in which NVIDIA's driver itself reports that something is broken.

    They are informational and never conclusive: a reset may be pending for days (a row remap) while jobs run well.
    """
    for text in lines:
        if found := _NVML.match(text):
            node, action, lost, remapping, errors, _ = found.groups()
            kinds = (("lost", lost), ("row_remapping", remapping), ("recovery_action", action), ("errors", errors))
            kind = next((name for name, is_found in kinds if is_found), "driver_hung")
            yield KernelCause(
                category="gpu_ecc_error" if remapping or errors else "gpu_hardware",
                signature=f"nvml.{kind}",
                node=node,
                line=0,
                text=text,
                meaning=f"its driver asks for {action}" if action else _NVML_MEANINGS[kind],
                conclusive=False,
                rank=2,
                source="nvml",
            )
