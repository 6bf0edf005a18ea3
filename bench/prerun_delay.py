"""Measure how much later a job's first line runs with gsub than with sbatch.

Runs as root, on a lab of 8 nodes with 8 GPUs; the lab is made for the run unless --dir names one. The job's first line
prints the time, so a delay is measured from the call of sbatch or gsub to that line. All figures of a table are from
one run, since only those can be compared. There are two tables:

sizes  Jobs that train, with 1, 4 and 16 GPUs. On the empty lab every GPU is free. On the full lab other jobs hold all
       GPUs, and some seconds after the submission exactly as many GPUs as the job needs become free; other one-GPU
       jobs were submitted after it, enough to take all of them. `passed by` counts those that started before the job.
kinds  Jobs with 2 GPUs that train or do not train: submitted by sbatch, by gsub, and by gsub again without a change.
       Targets (docs/prerun.md): a job that does not train starts at most 60 s later than with sbatch the first time,
       and 5 s the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from latency.clusters import cluster

from slurmwrap.fast_dataclasses import asdict, dataclass

FIRST_S, NEXT_S = 60.0, 5.0
GIVE_UP_S = 900.0
POLL_S = 0.1
PYTHON = sys.executable
NODES, GPUS_PER_NODE = 8, 8
SIZES = (1, 4, 16)
LABS = ("empty", "full")
# On the full lab the GPUs become free this long after the submission, and the other jobs run for so long.
FREE_AFTER_S, OTHERS_RUN_S = 20.0, 40
FIRST_LINE = "date +started=%s.%N"

EVALUATION = """\
import time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
model.eval()
data = TensorDataset(torch.rand(100_000, 16), torch.randint(0, 10, (100_000,)))
right = seen = 0
with torch.no_grad():
    for x, y in DataLoader(data, batch_size=16):
        right, seen = right + (model(x).argmax(1) == y).sum().item(), seen + len(y)
        if seen % 320 == 0:
            print(f"evaluated {seen}: accuracy {right / seen:.3f}", flush=True)
        time.sleep(0.1)
"""
GENERATION = """\
import time, torch
model = torch.nn.GRU(32, 32)
head = torch.nn.Linear(32, 96)
with torch.inference_mode():
    token, state = torch.zeros(1, 32), None
    while True:
        out, state = model(token, state)
        print(chr(32 + int(head(out).argmax())), end="", flush=True)
        token = out
        time.sleep(0.05)
"""
TRAINING = """\
import time, torch
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.rand(8, 16)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.2)
"""
SERVER = """\
from http.server import HTTPServer, SimpleHTTPRequestHandler
HTTPServer(("0.0.0.0", 0), SimpleHTTPRequestHandler).serve_forever()
"""
PROGRAMS = {"evaluate.py": EVALUATION, "generate.py": GENERATION, "fit_model.py": TRAINING, "serve.py": SERVER}
# kind -> (whether it trains, the program that the script starts)
KINDS: Mapping[str, tuple[bool, str]] = {
    "evaluation": (False, f"{PYTHON} evaluate.py"),
    "generation": (False, f"{PYTHON} generate.py"),
    "HTTP server": (False, f"{PYTHON} -m http.server 0"),
    "own server": (False, f"{PYTHON} serve.py"),
    "sleep infinity": (False, "sleep infinity"),
    "molecular dynamics": (False, "while :; do awk 'BEGIN { for (i = 0; i < 3e6; i++) x += sin(i) }'; done"),
    "training": (True, f"{PYTHON} fit_model.py"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindDelays:
    """Seconds from the call to the job's first line."""

    kind: str
    sbatch: float
    first: float
    second: float

    @property
    def kept(self) -> bool:
        """Whether both targets hold; for a job that trains the first target applies."""
        return self.first - self.sbatch <= FIRST_S and self.second - self.sbatch <= NEXT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """When one job started, in seconds after the call (empty lab) or after its GPUs became free (full lab).

    The three parts of a pre-run are 0 if there was none: until the script's first line ran in it, from there to its
    verdict, and from the verdict to the job's first line.
    """

    started: float
    passed_by: int = 0
    until_script: float = 0.0
    until_verdict: float = 0.0
    until_job: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeDelay:
    """One row of the table of sizes: medians over the rounds."""

    gpus: int
    lab: str
    sbatch: Start
    gsub: Start

    @property
    def delay(self) -> float:
        """Seconds that gsub's job started later than sbatch's."""
        return self.gsub.started - self.sbatch.started


class Bench:
    """A lab's user: submits jobs, waits for their first lines, and removes them."""

    def __init__(self, environ: Mapping[str, str], place: Path) -> None:
        self.environ, self.place = dict(environ), place

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """Return the output of a command. Raise SystemExit with its messages if it fails."""
        done = subprocess.run(words, cwd=cwd or self.place, env=self.environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} failed: {done.stderr}")
        return done.stdout

    def submit(self, program: str, folder: Path, *options: str) -> str:
        """Submit job.sbatch in `folder` and return its job id."""
        return re.findall(r"Submitted batch job (\d+)", self.run(program, *options, "job.sbatch", cwd=folder))[0]

    def wait_for_first_line(self, job: str, folder: Path) -> float:
        """Return the Unix time at which the first line of the job ran."""
        output, until = folder / f"slurm-{job}.out", time.time() + GIVE_UP_S
        while not (found := find_first_line(output)):
            if time.time() > until:
                raise SystemExit(f"job {job} did not start within {GIVE_UP_S:.0f} s")
            time.sleep(POLL_S)
        return found

    def cancel_all(self) -> None:
        """Cancel every job of this user and wait until none is left, and until every node is idle."""
        self.run("scancel", f"--user={os.getuid()}")
        until = time.time() + GIVE_UP_S
        while self.run("squeue", "-h").strip() or set(self.run("sinfo", "-h", "-N", "-o", "%t").split()) != {"idle"}:
            if time.time() > until:
                raise SystemExit("the lab's nodes do not become idle")
            time.sleep(POLL_S)


def find_first_line(output: Path) -> float:
    """Return the time that the first line of a job printed into `output`; 0.0 if it has not run."""
    try:
        found = re.search(r"started=([\d.]+)\n", output.read_text(errors="replace"))
    except OSError:
        return 0.0
    return float(found[1]) if found else 0.0


def make_folder(place: Path, name: str, head: str, command: str) -> Path:
    """Write job.sbatch and the programs into a new folder and return it."""
    folder = place / re.sub(r"\W", "_", name)
    folder.mkdir()
    for program, text in PROGRAMS.items():
        (folder / program).write_text(text)
    (folder / "job.sbatch").write_text(f"#!/bin/bash\n{head}\n{FIRST_LINE}\n{command}\n")
    return folder


# --- sizes -----------------------------------------------------------------------------------------------------------


def make_request(gpus: int) -> str:
    """Return the #SBATCH lines of a job with so many GPUs: on one node, or on whole nodes."""
    nodes = max(1, gpus // GPUS_PER_NODE)
    return f"#SBATCH --nodes={nodes} --gres=gpu:{gpus // nodes} -c 1 --mem=2G --time=30"


def measure_size(bench: Bench, gpus: int, lab: str, rounds: int) -> SizeDelay:
    """Return the medians over the rounds; sbatch and gsub in turn, each with a script that gsub does not know yet."""
    starts: dict[str, list[Start]] = {"sbatch": [], "gsub": []}
    for number in range(rounds):
        for program, found in starts.items():
            show_progress(f"{gpus} GPUs, {lab} lab, round {number + 1} of {rounds}: {program}")
            # The comment makes it another script, so that no earlier pre-run or run counts for it.
            command = f"{PYTHON} fit_model.py  # {program} {number}"
            folder = make_folder(bench.place, f"{gpus} {lab} {number} {program}", make_request(gpus), command)
            measure_start = measure_on_full_lab if lab == "full" else measure_on_empty_lab
            found.append(measure_start(bench, program, folder, gpus))
            bench.cancel_all()
    return SizeDelay(gpus=gpus, lab=lab, sbatch=take_median(starts["sbatch"]), gsub=take_median(starts["gsub"]))


def take_median(starts: Sequence[Start]) -> Start:
    """Return the (upper) median by the time of the start."""
    return sorted(starts, key=lambda one: one.started)[len(starts) // 2]


def measure_on_empty_lab(bench: Bench, program: str, folder: Path, gpus: int) -> Start:
    """Submit the job while every GPU is free."""
    del gpus
    with new_preruns(bench) as find_preruns:
        called = time.time()
        job = bench.submit(program, folder)
        return describe_start(bench.wait_for_first_line(job, folder), called, find_preruns())


def measure_on_full_lab(bench: Bench, program: str, folder: Path, gpus: int) -> Start:
    """Submit the job while no GPU is free, then other jobs, then end the jobs that hold as many GPUs as it needs."""
    to_end = fill_lab(bench, gpus)
    with new_preruns(bench) as find_preruns:
        job = bench.submit(program, folder)
        others = submit_others(bench, gpus)
        time.sleep(FREE_AFTER_S)
        freed = time.time()
        bench.run("scancel", *to_end)
        started = bench.wait_for_first_line(job, folder)
        passed_by = sum(0 < find_first_line(output) < started for output in others)
        return describe_start(started, freed, find_preruns(), passed_by)


def fill_lab(bench: Bench, gpus: int) -> list[str]:
    """Hold all GPUs by jobs, and return the ids of those that hold as many as `gpus`."""
    folder = bench.place / "filler"
    folder.mkdir(exist_ok=True)
    (folder / "job.sbatch").write_text(f"#!/bin/bash\n{FIRST_LINE}\nsleep 3600\n")
    of_job = [min(gpus, GPUS_PER_NODE)] * max(1, gpus // GPUS_PER_NODE)
    rest = [GPUS_PER_NODE - of_job[0]] if of_job[0] < GPUS_PER_NODE else []
    rest += [GPUS_PER_NODE] * (NODES - max(1, gpus // GPUS_PER_NODE))
    options = ("-c", "1", "--mem=1G", "--time=120")
    jobs = [bench.submit("sbatch", folder, f"--gres=gpu:{count}", *options) for count in (*of_job, *rest)]
    for job in jobs:
        bench.wait_for_first_line(job, folder)
    return jobs[: len(of_job)]


def submit_others(bench: Bench, gpus: int) -> list[Path]:
    """Submit one-GPU jobs that would take all GPUs that the measured job waits for. Return their output files."""
    folder = bench.place / "others"
    folder.mkdir(exist_ok=True)
    (folder / "job.sbatch").write_text(f"#!/bin/bash\n{FIRST_LINE}\nsleep {OTHERS_RUN_S}\n")
    options = ("--gres=gpu:1", "-c", "1", "--mem=1G", "--time=2")
    return [folder / f"slurm-{bench.submit('sbatch', folder, *options)}.out" for _ in range(gpus)]


@contextmanager
def new_preruns(bench: Bench) -> Iterator[Callable[[], list[Path]]]:
    """Yield a function that returns the directories of the pre-runs that were submitted since."""
    folder = Path(bench.environ["XDG_STATE_HOME"], "slurmwrap", "prerun")
    before = set(folder.glob("*/spec.json"))
    yield lambda: [path.parent for path in set(folder.glob("*/spec.json")) - before]


def describe_start(started: float, since: float, preruns: Sequence[Path], passed_by: int = 0) -> Start:
    """Return the start, with the parts of the pre-run if it had a verdict before the job started."""
    for directory in preruns:
        script, verdict = find_first_line(directory / "output"), directory / "verdict.json"
        if script and verdict.exists() and (at := verdict.stat().st_mtime) <= started:
            return Start(
                started=started - since,
                passed_by=passed_by,
                until_script=script - since,
                until_verdict=at - script,
                until_job=started - at,
            )
    return Start(started=started - since, passed_by=passed_by)


def format_sizes(measured: Sequence[SizeDelay]) -> str:
    """Return the table of sizes as Markdown."""
    rows = [
        "| GPUs | lab | sbatch s | gsub s | delay s | until the pre-run's first line | to its verdict "
        "| to the job's first line | passed by, sbatch | passed by, gsub |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in measured:
        of = one.gsub
        parts = [f"{part:.1f}" if of.until_job else "–" for part in (of.until_script, of.until_verdict, of.until_job)]
        cells = (one.gpus, one.lab, f"{one.sbatch.started:.1f}", f"{of.started:.1f}", f"{one.delay:+.1f}", *parts)
        rows.append(f"| {' | '.join(map(str, (*cells, one.sbatch.passed_by, of.passed_by)))} |")
    return "\n".join(rows)


# --- kinds -----------------------------------------------------------------------------------------------------------


def measure_kind(bench: Bench, kind: str) -> KindDelays:
    """Return the delays of one kind of job: by sbatch, by gsub, and by gsub again."""
    request = "#SBATCH --gres=gpu:2 -c 2 --mem=4G --time=30"
    folder = make_folder(bench.place, kind, request, KINDS[kind][1])
    found = []
    for program in ("sbatch", "gsub", "gsub"):
        show_progress(f"{kind}: {program}")
        called = time.time()
        found.append(bench.wait_for_first_line(bench.submit(program, folder), folder) - called)
        bench.cancel_all()
    plain, first, second = found
    return KindDelays(kind=kind, sbatch=plain, first=first, second=second)


def format_kinds(measured: Sequence[KindDelays]) -> str:
    """Return the table of kinds as Markdown."""
    rows = [
        "| job | sbatch s | gsub s | next gsub s | later than sbatch, first | next | targets |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in measured:
        cells = (f"{one.sbatch:.1f}", f"{one.first:.1f}", f"{one.second:.1f}")
        later = (f"{one.first - one.sbatch:+.1f}", f"{one.second - one.sbatch:+.1f}")
        rows.append(f"| {one.kind} | {' | '.join(cells)} | {' | '.join(later)} | {'kept' if one.kept else 'MISSED'} |")
    return "\n".join(rows)


def show_progress(line: str) -> None:
    """Print a line about what is measured next on stderr."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=("sizes", "kinds"), help="only this table (default: both)")
    parser.add_argument("--gpus", action="append", type=int, choices=SIZES, help="only these sizes (default: all)")
    parser.add_argument("--lab", action="append", choices=LABS, help="only this state of the lab (default: both)")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only these kinds (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="of each size; medians are shown (default: 3)")
    parser.add_argument("--dir", default="", help="a lab that is up already; default: one is made for the run")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args()
    sizes: list[SizeDelay] = []
    kinds: list[KindDelays] = []
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-", dir="/var/tmp") as scratch:
        place = Path(scratch)
        place.chmod(0o755)  # the lab serves several users
        with cluster(NODES, place, options.dir) as environ:
            bench = Bench(environ, place)
            if options.table != "kinds":
                cases = [(gpus, lab) for lab in options.lab or LABS for gpus in options.gpus or SIZES]
                sizes = [measure_size(bench, gpus, lab, options.rounds) for gpus, lab in cases]
            if options.table != "sizes":
                kinds = [measure_kind(bench, kind) for kind in options.kind or KINDS]
    machine = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "rounds": options.rounds}
    if options.json:
        print(json.dumps({**machine, "sizes": [*map(asdict, sizes)], "kinds": [*map(asdict, kinds)]}, indent=2))
    else:
        print(f"{machine['cpus']} CPUs, load {machine['load']}; medians of {options.rounds} rounds (sizes)")
        if sizes:
            print(f"\n{format_sizes(sizes)}")
        if kinds:
            print(f"\ntargets: {FIRST_S:.0f} s later than sbatch the first time, {NEXT_S:.0f} s the next time")
            print(f"\n{format_kinds(kinds)}")
    return 0 if all(one.kept for one in kinds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
