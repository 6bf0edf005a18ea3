"""The faults of a run: how each begins and ends. Nothing of the machine is changed, its clock neither."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random

from chaos.cluster import ChaosLab

_DAEMONS = {"kill": signal.SIGKILL, "end": signal.SIGTERM, "hangup": signal.SIGHUP, "stop": signal.SIGSTOP}
# Fault and weight. `end`: SIGTERM; `stop`: SIGSTOP, then SIGCONT.
_WEIGHTS = {
    **{f"{word} reconcile": weight for word, weight in (("kill", 4), ("end", 2), ("hangup", 1), ("stop", 2))},
    **{f"{word} slurmctld": weight for word, weight in (("kill", 2), ("end", 2), ("stop", 2))},
    **{f"{word} slurmd": weight for word, weight in (("kill", 2), ("end", 1), ("stop", 2))},
    **{f"{word} munged": weight for word, weight in (("kill", 1), ("end", 1), ("stop", 1))},
    "power": 1,
    "full spool": 1,
    "full state": 1,
    "clock": 3,
}
_SHIFTS_S = (60.0, 3600.0, 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnFault:
    """A fault to cause for `lasts_s`. `target`: a daemon, a node, a disk, or the shift of the clock in seconds."""

    kind: str
    target: str
    lasts_s: float


def draw_fault(dice: Random, nodes: tuple[str, ...]) -> DrawnFault:
    """Draw a fault."""
    kind = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    name = kind.split()[-1]
    target = dice.choice(nodes) if name in ("slurmd", "power") else name
    if name == "clock":
        target = f"{dice.choice((-1, 1)) * dice.choice(_SHIFTS_S):g}"
    longest = 25.0 if kind.startswith(("stop", "full", "clock")) else 12.0
    return DrawnFault(kind=kind, target=target, lasts_s=dice.uniform(0.0, longest))


def begin_fault(lab: ChaosLab, fault: DrawnFault) -> None:
    """Cause it."""
    word, _, name = fault.kind.partition(" ")
    if fault.kind == "power":
        lab.cut_power(fault.target)
    elif fault.kind == "clock":
        lab.clock_file.write_text(fault.target)
    elif word == "full":
        lab.fill(lab.layout.spool if name == "spool" else lab.layout.state)
    elif word == "stop":
        lab.send(fault.target, signal.SIGSTOP)
    else:
        lab.end(fault.target, _DAEMONS[word])


def end_fault(lab: ChaosLab, fault: DrawnFault) -> None:
    """Put it right: as systemd and an administrator do."""
    word, _, name = fault.kind.partition(" ")
    if fault.kind == "clock":
        lab.clock_file.write_text("0")
    elif word == "full":
        lab.free(lab.layout.spool if name == "spool" else lab.layout.state)
    elif word == "stop":
        lab.send(fault.target, signal.SIGCONT)
    else:
        lab.start(fault.target)
