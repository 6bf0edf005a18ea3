"""Generate scontrol's output for a cluster of any size, in the grammar of 22.05 and 24.11.

tests/data/slurm has real outputs. `nodes` nodes of 8 GPUs, 128 CPUs and 1 TB are below leaf switches of 32 nodes and
spines of 16 leaves, in two partitions. Running jobs have 1 to 8 GPUs on one node or whole nodes, so that some nodes are
full, most are partly in use, and some are empty. A hundredth of the nodes is drained, with a Reason written by people.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

GPUS, CPUS, MEM_MIB = 8, 128, 1_031_000
LEAF, SPINE = 32, 16  # nodes under a leaf switch, leaf switches under a spine
_TAIL_22 = " CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterText:
    """The outputs of the snapshot's two commands."""

    nodes: str  # scontrol show node -d -o
    rest: str  # scontrol -o, fed "show topology", "show partition", "show reservation"


def cluster_text(nodes: int, jobs: int, release: str = "22.05", seed: int = 1) -> ClusterText:
    """Return a cluster of `nodes` nodes with `jobs` running jobs, or fewer if they do not fit; reproducible by seed."""
    chance = random.Random(seed)
    held = _held(nodes, jobs, chance)
    lines = [_node_line(index, held[index], release, chance) for index in range(nodes)]
    rest = "\n".join([*_topology(nodes), *_partitions(nodes, release), *_reservations(nodes)])
    return ClusterText(nodes="\n".join(lines) + "\n", rest=rest + "\n")


def name(index: int) -> str:
    """Return the node names gpu-00000, gpu-00001, ..."""
    return f"gpu-{index:05d}"


def _held(nodes: int, jobs: int, chance: random.Random) -> list[int]:
    """Return the allocated GPUs of each node. Sizes are roughly those of Philly: most jobs have one GPU."""
    held = [0] * nodes
    for _ in range(jobs):
        gpus = chance.choices((1, 2, 4, 8, 32), (55, 12, 13, 17, 3))[0]
        for _ in range(max(1, gpus // GPUS)):
            at = next(
                (n for n in (chance.randrange(nodes) for _ in range(20)) if held[n] + min(gpus, GPUS) <= GPUS), None
            )
            if at is not None:
                held[at] += min(gpus, GPUS)
    return held


def _node_line(index: int, held: int, release: str, chance: random.Random) -> str:
    cpus, memory = held * (CPUS // GPUS), held * 120_000
    taken = sorted(chance.sample(range(GPUS), held))
    drained = index % 100 == 57
    state = "ALLOCATED" if held == GPUS else "MIXED" if held else "IDLE"
    alloc = f"cpu={cpus},mem={memory}M,gres/gpu={held}" if held else ""
    old, features = release == "22.05", f"a100,ib,rack{index // LEAF}"
    line = (
        f"NodeName={name(index)} Arch=x86_64 CoresPerSocket=64  CPUAlloc={cpus} CPUEfctv={CPUS} CPUTot={CPUS} "
        f"CPULoad={cpus * 0.7:.2f} AvailableFeatures={features} ActiveFeatures={features} "
        f"Gres=gpu:a100:{GPUS}(S:0-1) {'GresDrain=N/A ' if old else ''}GresUsed=gpu:a100:{held}(IDX:{_indexes(taken)}) "
        f"NodeAddr=10.{index >> 16}.{index >> 8 & 255}.{index & 255} NodeHostName={name(index)} "
        f"{'Port=6818 Version=22.05.8' if old else 'Version=24.11.5'} "
        f"OS=Linux 5.14.0-362.24.1.el9_3.x86_64 #1 SMP PREEMPT_DYNAMIC Wed Mar 13 17:33:16 UTC 2024  "
        f"RealMemory={MEM_MIB} AllocMem={memory} FreeMem={chance.randrange(10_000, MEM_MIB)} Sockets=2 Boards=1 "
        f"MemSpecLimit=8000 State={state}{'+DRAIN' if drained else ''} ThreadsPerCore=1 TmpDisk=0 "
        f"Weight={1 + index % 3} "
        f"Owner=N/A MCS_label=N/A Partitions=gpu,long  BootTime=1795222925 SlurmdStartTime=1795224086 "
        f"LastBusyTime={1795224653 - index} {'' if old else 'ResumeAfterTime=None '}"
        f"CfgTRES=cpu={CPUS},mem={MEM_MIB}M,billing={CPUS},gres/gpu={GPUS} AllocTRES={alloc}{_TAIL_22 if old else ''}"
    )
    return line + (f" Reason=DIMM B2 swapped State=IDLE [root@{1795000000 + index}]" if drained else "")


def _indexes(taken: list[int]) -> str:
    """Return indices in Slurm's format: "0-2,5"; "N/A" for none."""
    runs: list[list[int]] = []
    for index in taken:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "N/A"


def _between(first: int, end: int) -> str:
    return f"gpu-[{first:05d}-{end - 1:05d}]" if end - first > 1 else name(first)


def _topology(nodes: int) -> list[str]:
    leaves = [(first, min(first + LEAF, nodes)) for first in range(0, nodes, LEAF)]
    spines = [leaves[first : first + SPINE] for first in range(0, len(leaves), SPINE)]
    lines = [f"SwitchName=leaf{i} Level=0 LinkSpeed=1 Nodes={_between(*leaf)}" for i, leaf in enumerate(leaves)]
    for i, below in enumerate(spines):
        first, last = i * SPINE, i * SPINE + len(below) - 1
        lines.append(
            f"SwitchName=spine{i} Level=1 LinkSpeed=1 Nodes={_between(below[0][0], below[-1][1])} "
            f"Switches=leaf[{first}-{last}]"
        )
    children = f"spine[0-{len(spines) - 1}]"
    return [*lines, f"SwitchName=core Level=2 LinkSpeed=1 Nodes={_between(0, nodes)} Switches={children}"]


def _partitions(nodes: int, release: str) -> list[str]:
    sockets = "" if release == "22.05" else "MaxCPUsPerSocket=UNLIMITED "
    tres = f"cpu={CPUS * nodes},mem={MEM_MIB * nodes}M,node={nodes},billing={CPUS * nodes},gres/gpu={GPUS * nodes}"
    return [
        f"PartitionName={partition} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default={default} "
        f"QoS=N/A DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED "
        f"MaxTime={most} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED {sockets}Nodes={_between(0, nodes)} "
        f"PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE "
        f"PreemptMode=OFF State=UP TotalCPUs={CPUS * nodes} TotalNodes={nodes} SelectTypeParameters=NONE "
        f"JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED TRES={tres}"
        for partition, default, most in (("gpu", "YES", "2-00:00:00"), ("long", "NO", "14-00:00:00"))
    ]


def _reservations(nodes: int) -> list[str]:
    """Return the reservations: maintenance of one leaf in two days, and a course on eight nodes."""
    return [
        f"ReservationName={title} StartTime={start} EndTime={start + 14400} Duration=04:00:00 "
        f"Nodes={_between(first, end)} NodeCnt={end - first} CoreCnt={(end - first) * CPUS} Features=(null) "
        f"PartitionName=(null) Flags={flags} TRES=cpu={(end - first) * CPUS} Users={users} Groups=(null) "
        f"Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
        for title, start, first, end, flags, users in (
            ("maint", 1795400000, nodes - LEAF, nodes, "MAINT,IGNORE_JOBS,SPEC_NODES", "root"),
            ("course", 1795300000, 64, 72, "SPEC_NODES", "alice"),
        )
    ]
