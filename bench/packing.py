"""Throughput of packed arrays (gsub --pack=auto) over unpacked ones, on a real Slurm with invented GPUs. Runs as root.

    bench/packing.py                     a sweep of small members, one of members that fill a GPU, and a mixed queue
    bench/packing.py --only mixed        one of them
    bench/packing.py --check             exit code 1 if a target is missed
    bench/packing.py --measured          K by the jobs' own pre-runs, where gsub measures it; no profile is known before

Each arm submits the same arrays by gsub, with and without --pack=auto, on a lab with 8 GPUs. A member is a program
without a GPU that makes progress at the speed of the forecast in slurmwrap/profiling/colocation.py (docs/packing.md
says what exactly that models). The figures are ratios within one run: throughput of the packed arm over the unpacked
one, from the first start of a member to the end of the last one. What passes from the submission to the first start is
printed: with --measured it is mostly the pre-run, whose minutes are not compressed as the trainings are.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from replay.labs import USER, Lab, Wanted, account, lab, parent, wait_for  # noqa: E402

from slurmwrap.profiling.colocation import MEASURED, GpuDemand, predict_pair  # noqa: E402

_GPUS, _NODES, _CPUS, _MEM_MIB = 4, 2, 32, 256_000
# Seconds between two looks of a member at those that share its GPU.
_LOOK_S = 0.25
# Seconds that a member would run in a pre-run, which ends it before.
_PRERUN_S = 3600.0
# Seconds in which an arm must end, as a multiple of the time that its members need one after the other on each GPU.
_PATIENCE, _LEAST_PATIENCE_S = 4.0, 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A program. `util`: of its GPU when it is alone; `step_s`: GPU time of a step; `gpu_mem_mib`: its peak."""

    name: str
    util: float
    step_s: float
    gpu_mem_mib: int


SMALL = Kind(name="small", util=0.20, step_s=0.02, gpu_mem_mib=4_000)
MEDIUM = Kind(name="medium", util=0.45, step_s=0.05, gpu_mem_mib=12_000)
FILLING = Kind(name="filling", util=0.95, step_s=0.20, gpu_mem_mib=30_000)
KINDS = {kind.name: kind for kind in (SMALL, MEDIUM, FILLING)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Arrays that are submitted one after the other. `target`: the least throughput over that of the unpacked ones."""

    name: str
    arrays: tuple[tuple[Kind, int], ...]
    target: float
    why: str


QUEUES = (
    Queue(name="small", arrays=((SMALL, 64),), target=2.5, why="members that leave most of a GPU idle"),
    Queue(name="filling", arrays=((FILLING, 64),), target=0.98, why="auto must leave them alone"),
    # A makespan that is 35 % shorter, which CARMA reports (arXiv 2508.19073), is a throughput of 1 / 0.65.
    Queue(name="mixed", arrays=((SMALL, 40), (MEDIUM, 16), (FILLING, 8)), target=1 / 0.65, why="makespan -35 %"),
)


# --- the program of a member ------------------------------------------------------------------------------------------


def compute_speed(one: Kind, others: Sequence[Kind]) -> float:
    """Return the speed of a program next to `others` on its GPU, relative to alone.

    Of two it is that of the fitted forecast. Of more, the slow-downs by each other one are added, and the GPU's time is
    not given twice: the utilizations times the speeds add up to 100 % at most.
    """
    pairs = (predict_pair(_get_demand(one), _get_demand(other), model=MEASURED).slowdown for other in others)
    together = one.util + sum(other.util for other in others)
    return min(1 / (1 + sum(pairs)), 1 / max(1.0, together))


def _get_demand(kind: Kind) -> GpuDemand:
    return GpuDemand(gpu_util=kind.util, gpu_s_per_step=kind.step_s)


def run_member(kind: Kind, seconds: float, folder: Path) -> None:
    """Run for so many seconds of a GPU of its own. Members in one job of Slurm share its one GPU.

    They find each other by abstract sockets: a pre-run protects files, and no member would see those of another.
    """
    job = f"slurmwrap-bench/{zlib.crc32(str(folder).encode())}/{os.environ['SLURM_JOB_ID']}/"
    mine = f"{job}{kind.name}/{os.getpid()}"
    begin, last, done, steps = time.time(), time.monotonic(), 0.0, 0
    # A training is much longer than its pre-run; what is compressed here is the training.
    in_prerun = "SLURMWRAP_PRERUN" in os.environ
    seconds = _PRERUN_S if in_prerun else seconds
    with socket.socket(socket.AF_UNIX) as known:
        known.bind(f"\0{mine}")
        while done < seconds:
            time.sleep(min(_LOOK_S, seconds - done))
            others = [KINDS[name] for name in _list_kinds(job, mine)]
            now = time.monotonic()
            done, last = done + (now - last) * compute_speed(kind, others), now
            while steps < done * kind.util / kind.step_s:
                steps += 1
                _count_step()
    if not in_prerun:
        (folder / "ends" / f"{kind.name}.{os.environ['SLURM_ARRAY_TASK_ID']}").write_text(f"{begin} {time.time()}")


def _list_kinds(job: str, mine: str) -> Iterator[str]:
    for line in Path("/proc/net/unix").read_text().splitlines():
        name = line.rpartition(" @")[2]
        if name.startswith(job) and name != mine:
            yield name.split("/")[3]


def _count_step() -> None:
    """Count a training step, where gsub counts them: in a pre-run."""
    with suppress(ImportError):
        from slurmwrap_step import step

        step()


# --- the arms ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What an arm did. `seconds`: from the first start of a member to the last end; `waited_s`: from the submission to
    that start; `members`: K of each array.
    """

    seconds: float
    waited_s: float
    members: tuple[int, ...]


def main() -> int:
    """Run the queues and print a table; with --member, be the program of one."""
    options = _parse_options()
    if options.member:
        kind, seconds, folder = options.member
        run_member(KINDS[kind], float(seconds), Path(folder))
        return 0
    compileall.compile_dir(str(_ROOT / "slurmwrap"), quiet=2)  # as an installation has it: users cannot write there
    wanted = [queue for queue in QUEUES if options.only in (None, queue.name)]
    with account(), parent() as directory:
        rows = [_run_queue(queue, directory, options) for queue in wanted]
    print("\n| queue | members of each array | K | throughput over unpacked | target | |\n|---|---|---|---|---|---|")
    for row in rows:
        print(row[1], flush=True)
    return int(options.check and not all(reached for reached, _ in rows))


def _run_queue(queue: Queue, directory: Path, options: argparse.Namespace) -> tuple[bool, str]:
    """Run both arms in turn on one lab, and return whether the target is reached, and a row of the table."""
    place = Wanted(
        directory=directory / f"lab-{queue.name}", base_port=options.base_port,
        nodes=_NODES, gpus=_GPUS, cpus=_CPUS, mem_mib=_MEM_MIB,
    )  # fmt: skip
    ratios, members = [], ()
    with lab(place) as running:
        if not options.measured:
            profiles = [_make_profile(kind) for kind, _ in queue.arrays]
            text = json.dumps({"slurmwrap_profiles": 1, "profiles": profiles})
            running.user(["slurmwrap", "profile", "import", "-"], stdin=text)
            running.root(["slurmwrap", "profile", "import", "--site", "--user", USER, "-"], stdin=text)
        for at in range(options.repeat):
            # Every other time the packed arm is the first.
            order = (True, False) if at % 2 else (False, True)
            arms = {packed: _run_arm(running, queue, options, at, packed=packed) for packed in order}
            alone, packed = arms[False], arms[True]
            ratios.append(alone.seconds / packed.seconds)
            members = packed.members
            print(
                f"{queue.name}: unpacked {alone.waited_s:.1f} + {alone.seconds:.1f} s, "
                f"packed {packed.waited_s:.1f} + {packed.seconds:.1f} s (K {members}): {ratios[-1]:.2f}", flush=True,
            )  # fmt: skip
    found = median(ratios)
    each = " + ".join(f"{count} {kind.name}" for kind, count in queue.arrays)
    spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
    word = "reached" if found >= queue.target else "missed"
    return found >= queue.target, (
        f"| {queue.name} | {each} | {', '.join(map(str, members))} | {found:.2f}{spread} "
        f"| {queue.target:.2f}, {queue.why} | {word} |"
    )


def _make_profile(kind: Kind) -> dict[str, object]:
    """Return what three complete runs of one member would have left."""
    return {
        "key": kind.name, "gpu_util": kind.util, "gpu_mem_mib": kind.gpu_mem_mib, "gpu_type": "a100",
        "mem_mib_per_gpu": 1_000, "steps_per_s": kind.util / kind.step_s,
        "runs": 3, "confidence": 0.9, "source": "epilog", "measured_at": time.time(),
    }  # fmt: skip


def _run_arm(running: Lab, queue: Queue, options: argparse.Namespace, at: int, *, packed: bool) -> Arm:
    folder = running.work / f"{queue.name}-{at}-{'packed' if packed else 'alone'}"
    running.user(["mkdir", "-p", f"{folder}/ends"])
    before = _list_packs(running.work)
    begin = time.time()
    for kind, count in queue.arrays:
        call = ["gsub", "--no-tune", "--no-place", "--gres=gpu:1", "-c1", f"--array=0-{count - 1}", f"-J{kind.name}"]
        call += ["--output=/dev/null", *(["--pack=auto"] if packed else [])]
        call += [] if options.measured and packed else ["--prerun=off"]
        call += [] if options.measured else [f"--resource-profile={kind.name}"]
        program = [sys.executable, str(Path(__file__).resolve()), "--member", kind.name, str(options.seconds)]
        script = f"#!/bin/bash\nexec {' '.join(program)} {folder}\n"
        said = running.user(["sh", "-c", 'exec "$@" 2>&1', "sh", *call], stdin=script)
        for line in said.splitlines() if packed else ():
            print(f"  {kind.name}: {line}", flush=True)
    wanted = sum(count for _, count in queue.arrays)
    needs = wanted * options.seconds / (_GPUS * _NODES)
    ends = folder / "ends"
    wait_for(
        lambda: len(list(ends.iterdir())) >= wanted, _LEAST_PATIENCE_S + _PATIENCE * needs, f"{wanted} members end", 1.0
    )
    spans = [tuple(map(float, path.read_text().split())) for path in ends.iterdir()]
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    wait_for(lambda: not running.user(["squeue", "-h", "-u", USER]).strip(), 120, "no job is left", 1.0)
    sizes = {name: size for name, size in _list_packs(running.work).items() if name not in before}
    found = dict(sizes.values())
    members = tuple(found.get(kind.name, 1) for kind, _ in queue.arrays)
    return Arm(seconds=last - first, waited_s=first - begin, members=members)


def _list_packs(home: Path) -> dict[str, tuple[str, int]]:
    """Return directory -> (job name, K) of the packed jobs of the user."""
    found = {}
    for path in home.glob(".local/state/slurmwrap/pack/*/spec.json"):
        spec = json.loads(path.read_text())
        found[path.parent.name] = (spec["job_name"], spec["members"])
    return found


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[queue.name for queue in QUEUES])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="a member's run time with a GPU of its own")
    parser.add_argument("--measured", action="store_true", help="K from the pre-runs")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--base-port", type=int, default=27100)
    parser.add_argument("--member", nargs=3, metavar=("KIND", "SECONDS", "DIRECTORY"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
