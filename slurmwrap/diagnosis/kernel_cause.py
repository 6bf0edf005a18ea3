"""What the node's kernel log says about an attempt. Pure.

Kernel lines decide where the application's text is ambiguous (an unspecified launch failure, a bare NCCL time-out);
they do not turn a syntax error into a hardware fault. Only they, Slurm and NVML may name a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurmwrap.diagnosis.signatures import SignatureSet, compile_pattern
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.diagnosis.xid import XidEvent, get_action, get_category, get_meaning, is_conclusive, parse_xids
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import KernelLine

# Causes that the application names too vaguely to stand against the kernel.
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
_HARD = ("RESET", "REBOOT", "DRAIN")
# A number is an action that the hook's binding does not know (node_hooks/nvml.py).
_NVML = re.compile(
    r"NVML on ([\w.-]{1,64}): (?:GPU \S+ \([^)]{0,40}\) )?"
    r"(?:asks for recovery action ([a-z]\w{2,40})|(is lost)|(has a failed row remapping)|(the driver hangs))"
)


_NVML_MEANS = {
    "lost": "the GPU is lost",
    "row_remapping": "a row of its memory could not be remapped",
    "driver_hung": "its driver does not answer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCause:
    """The kernel's finding. `rank`: 0 conclusive · 1 hardware or host trouble · 2 informational · 3 the program's."""

    category: str
    signature: str
    node: str
    # 1-based among the kernel lines
    line: int
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
    """The finding that weighs most; the earliest among equals. None when nothing that matters is said.

    `nvml`: Evidence.nvml, the driver's own report at the job's end.
    """
    words = [*_list_xid_causes(lines), *_list_signature_causes(lines, signatures), *_list_nvml_causes(nvml)]
    return min(words, key=lambda word: (word.rank, word.line), default=None)


def _list_xid_causes(lines: tuple[KernelLine, ...]) -> Iterable[KernelCause]:
    for event in parse_xids(line.text for line in lines):
        if category := get_category(event):
            yield _make_xid_cause(event, category, lines[event.line - 1].node)


def _make_xid_cause(event: XidEvent, category: str, node: str) -> KernelCause:
    conclusive, action = is_conclusive(event), get_action(event)
    infrastructure = CATEGORIES[category].domain == "IF"
    rank = 0 if conclusive and event.code != 154 else 1 if action in _HARD else 2 if infrastructure else 3
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


def _list_signature_causes(lines: tuple[KernelLine, ...], signatures: SignatureSet) -> Iterable[KernelCause]:
    needles = signatures.needles["kernel"]
    for number, line in enumerate(lines, 1):
        wanted = sorted({place for needle in needles if needle.literal in line.text for place in needle.wanted_by})
        for signature, pattern in (signatures.ranked[place] for place in wanted):
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
    """Informational and never conclusive: the reset may be pending for days (a row remap) while jobs run well.

    Of the lines that node_facts.py writes, those of NVIDIA's own statement that something is broken.
    """
    for text in lines:
        if found := _NVML.match(text):
            node, action, lost, remapping, _ = found.groups()
            said = "lost" if lost else "row_remapping" if remapping else "recovery_action" if action else "driver_hung"
            yield KernelCause(
                category="gpu_ecc_error" if remapping else "gpu_hardware",
                signature=f"nvml.{said}",
                node=node,
                line=0,
                text=text,
                meaning=f"its driver asks for {action}" if action else _NVML_MEANS[said],
                conclusive=False,
                rank=2,
                source="nvml",
            )
