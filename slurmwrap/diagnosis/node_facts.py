"""Format what a node's hooks recorded about its GPUs, and about themselves, as one line each. Pure.

docs/records.md lists the facts. They are written by root on that node, yet their types are checked. Lines that are
conclusive by NVIDIA's own statement come first: a recovery action, a lost GPU, a row that could not be remapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from slurmwrap.escape import marked
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.running_job import CLOCK_REASONS

_LOST = 15  # NVML_ERROR_GPU_IS_LOST
_LINES = 64  # maximum number of one Epilog
_CAP = 500
UNREAD = "the output was not read"
# Clocks that were held down: fewer minutes of use, or a smaller share of them, are not shown.
_LEAST_MINUTES, _SHOWN_SHARE, _LEAST_THERMAL_S = 5, 0.1, 60.0
# gpud counts a GPU as unhealthy whose hardware slowed it down in 6 of 10 minutes (components/accelerator/nvidia/
# hw-slowdown, DefaultStateHWSlowdownEventsThresholdFrequencyPerMinute).
_LONG_SHARE = 0.6
_SLOWED = re.compile(
    r"NVML on (?P<node>[\w.-]{1,64}): GPU \d{1,4} was slowed down in (?P<slowed>\d+) of (?P<busy>\d+) min"
)
# What a hook reports that it could not do. For errors that quote a user's path (log_error) only the reason is shown.
_HOOK_PROBLEMS = (
    ("gpu_error", "GPUs could not be read"),
    ("kernel_error", "kernel log"),
    ("network_error", "network ports could not be read"),
    ("lost", "lost"),
    ("errors", "failed in part"),
    ("clock_jump_s", "the clock was set while the job ran, by seconds"),
)


def format_gpu_lines(epilog: Observation) -> list[str]:
    """Return Evidence.nvml of one Epilog, e.g. `NVML on n3: GPU 0 (0000:05:00.0) is lost`; conclusive lines first."""
    gpus = epilog.facts.get("gpu")
    found = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
    lines = [
        line
        for list_facts in (_list_conclusive_faults, _list_informative_facts)
        for gpu in found
        for line in _format_lines(epilog.node, gpu, list_facts(gpu))
    ]
    hung = epilog.facts.get("driver_hung")
    if isinstance(hung, Mapping):
        lines.append(f"NVML on {epilog.node}: the driver hangs in {_clean_line(hung.get('call'))}")
    return [*lines, *format_clock_lines(epilog)][:_LINES]


def format_clock_lines(epilog: Observation) -> list[str]:
    """Return a line for each GPU whose clock was held down while the job used it.

    E.g. `NVML on n3: GPU 0 was slowed down in 34 of 100 minutes of use (hw_thermal 34), its SM clock was at 71 % ...`.
    """
    clocks = epilog.facts.get("clocks")
    found = clocks.items() if isinstance(clocks, Mapping) else ()
    lines = [
        f"NVML on {epilog.node}: GPU {index} {text}"
        for index, gpu in found
        if isinstance(gpu, Mapping) and str(index).isdigit() and (text := describe_held_clocks(gpu))
    ]
    return [line[:_CAP] for line in lines][:_LINES]


def describe_held_clocks(counts: Mapping[str, Any]) -> str:
    """Return "was slowed down in 34 of 100 minutes of use ..." from what the sampler counted of a GPU; "" if rarely."""
    busy, slowed = _count(counts, "busy"), _count(counts, "slowed")
    thermal_s, clock = counts.get("thermal_s"), counts.get("sm")
    heat = float(thermal_s) if isinstance(thermal_s, int | float) else 0.0
    often = slowed >= _SHOWN_SHARE * busy and slowed > 0
    hot = heat >= max(_LEAST_THERMAL_S, _SHOWN_SHARE * 60 * busy)
    if busy < _LEAST_MINUTES or not (often or hot):
        return ""
    held = ", ".join(f"{name} {_count(counts, name)}" for name in CLOCK_REASONS if _count(counts, name))
    text = f"was slowed down in {slowed} of {busy} minutes of use" + (f" ({held})" if held else "")
    if isinstance(clock, int | float) and 0 < clock <= 1:
        text += f", its SM clock was at {100 * clock:.0f} % of its maximum"
    return text + (f", {heat:.0f} s by heat" if heat >= 1 else "")


def is_slowed_for_long(line: str) -> bool:
    """Return True if this line shows that the clock was held down for most of the time that the GPU was in use."""
    found = _SLOWED.match(line)
    return found is not None and int(found["slowed"]) >= _LONG_SHARE * int(found["busy"])


def format_hook_lines(hook: Observation) -> list[str]:
    """Return Evidence.hooks of one Prolog or Epilog: what its gate decided, and what it could not do."""
    if hook.context not in (Context.PROLOG, Context.EPILOG):
        return []
    start = f"{hook.context.value} on {hook.node}:"
    gate = hook.facts.get("gate")
    lines = _format_gate_lines(hook.node, gate) if isinstance(gate, Mapping) else []
    for key, problem in _HOOK_PROBLEMS:
        if value := hook.facts.get(key):
            text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append(f"{start} {problem}: {_clean_line(text)}")
    if (error := hook.facts.get("log_error")) and not hook.facts.get("logs"):
        lines.append(f"{start} {UNREAD}: {_clean_line(str(error).rpartition(': ')[2])}")
    return [line[:_CAP] for line in lines]


def _format_gate_lines(node: str, gate: Mapping[str, Any]) -> list[str]:
    """Return the gate's decision. A kernel line is left out: it may name the program of the previous user."""
    text = f": {_clean_line(gate['text'])}" if gate.get("source") == "nvml" and gate.get("text") else ""
    cause = f"{_clean_line(gate.get('cause'))}{text}" if gate.get("cause") else "no cause"
    if gate.get("refused"):
        return [f"prolog on {node}: refused: {cause}"]
    return [f"gate on {node}: let the job start ({_clean_line(gate.get('why_not'))}) in spite of {cause}"]


def _format_lines(node: str, gpu: Mapping[str, Any], facts: Iterable[str]) -> Iterable[str]:
    source = "amdgpu" if gpu.get("vendor") == "amd" else "NVML"
    where = f"{source} on {node}: GPU {_clean_line(gpu.get('index'))} ({_clean_line(gpu.get('bus_id'))})"
    return (f"{where} {fact}"[:_CAP] for fact in facts)


def _list_conclusive_faults(gpu: Mapping[str, Any]) -> Iterable[str]:
    if gpu.get("error_code") == _LOST:
        yield "is lost"
    if gpu.get("recovery_action") not in (None, "", "none"):
        yield f"asks for recovery action {_clean_line(gpu['recovery_action'])}"
    if _get_part(gpu, "remapped_rows").get("failed") is True:
        yield "has a failed row remapping"


def _list_informative_facts(gpu: Mapping[str, Any]) -> Iterable[str]:
    """Yield facts that are also true of many working GPUs: they support a finding, and never make one."""
    yield from _describe_memory_faults(gpu)
    yield from _describe_link_faults(gpu)
    reasons = gpu.get("clock_reasons")
    if isinstance(reasons, list) and reasons:
        yield f"is slowed down: {_clean_line(', '.join(map(str, reasons)))}"
    processes = gpu.get("processes")
    if isinstance(processes, list) and processes:
        yield f"still had {len(processes)} processes after the job"
    if gpu.get("error") and gpu.get("error_code") != _LOST:
        yield f"does not answer: {_clean_line(gpu['error'])}"


def _describe_memory_faults(gpu: Mapping[str, Any]) -> Iterable[str]:
    if count := _count(_get_part(gpu, "ecc_uncorrected"), "volatile"):
        yield f"has {count} uncorrected ECC errors since its last reset"
    if new := _get_part(gpu, "new_ras"):
        yield f"has new uncorrectable errors: {', '.join(f'{_clean_line(name)} {_count(new, name)}' for name in new)}"
    pages = _get_part(gpu, "bad_pages")
    if waiting := _count(pages, "pending") + _count(pages, "failed"):
        yield f"has {waiting} bad memory pages that are not yet taken out of use"
    if _get_part(gpu, "sram").get("threshold_exceeded") is True:
        yield "has more SRAM errors than its threshold"
    if _get_part(gpu, "remapped_rows").get("pending") is True:
        yield "has a row remapping that waits for a reset"
    if _get_part(gpu, "retired_pages").get("pending") is True:
        yield "has pages to retire at the next reset"


def _describe_link_faults(gpu: Mapping[str, Any]) -> Iterable[str]:
    links, pcie = _get_part(gpu, "nvlink"), _get_part(gpu, "pcie")
    if (before := _count(links, "was_active")) and (now := _count(links, "active")) < before:
        yield f"has {now} of {before} NVLinks left"
    if errors := _get_part(links, "new_errors"):
        yield "has new NVLink errors: " + ", ".join(f"{_clean_line(name)} {_count(errors, name)}" for name in errors)
    if 0 < (width := _count(pcie, "width")) < (most := _count(pcie, "max_width")):
        yield f"runs on {width} of {most} PCIe lanes"


def _get_part(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = facts.get(key)
    return found if isinstance(found, Mapping) else {}


def _count(facts: Mapping[str, Any], key: str) -> int:
    found = facts.get(key)
    return int(found) if isinstance(found, int | float) and abs(found) < 1e15 else 0


def _clean_line(value: object) -> str:
    """Return one line without control characters."""
    text = "" if value is None else str(value)
    return marked(text, " ", _CAP)
