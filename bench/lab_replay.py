"""Replay job traces on a real Slurm (slurmwrap lab) with plain sbatch and with gsub. Runs as root.

    bench/lab_replay.py                    Synergy's 100 jobs once: CPUs and memory tuned (a few minutes)
    bench/lab_replay.py --series           that trace and ten generated ones, three times each, on several labs
    bench/lab_replay.py --only locality    multi-GPU jobs that are slower when spread
    bench/lab_replay.py --only suspects    one bad node
    bench/lab_replay.py --only order       the queue's order by predicted run times, with fair share

`make bench` runs the first. Time is compressed: with --scale 300 one second stands for 300 of the trace. The delays of
Slurm and slurmwrap are not compressed, so a reaction of one second counts as five minutes; nothing is subtracted for
this. Jobs are real batch jobs that sleep as long as their model would train with what they were allocated
(bench/replay/jobscript.py). Both arms submit the same jobs in the same order; the figures come from slurmctld's log.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay import page, plot, settings, tuning
from replay.arms import ARMS
from replay.labs import account, lab, parent
from replay.tuning import Arm

from slurmwrap.sim.sim_job import SimJob

Pair = dict[str, Arm]
_ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    options = _options()
    compileall.compile_dir(str(_ROOT / "slurmwrap"), quiet=2)  # as an installation has it: users cannot write there
    with account(), parent() as directory:
        if options.only == "tuning":
            return replay_tuning(options, directory)
        if options.only == "locality":
            from replay.locality import replay
        elif options.only == "order":
            from replay.order import replay
        else:
            from replay.suspects import replay
        return replay(options, directory)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("tuning", "locality", "suspects", "order"), default="tuning")
    parser.add_argument("--series", action="store_true", help="the shipped trace and generated ones, repeated")
    parser.add_argument("--seeds", default="1-10", help="of the generated traces")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scale", type=float, help="seconds of the trace in one second")
    parser.add_argument("--labs", type=int, default=4, help="side by side, in a series")
    parser.add_argument("--base-port", type=int, default=22000)
    parser.add_argument("--policy", default="graded", help="tuning.policy of the gsub arm")
    parser.add_argument("--trace", choices=("tiresias", "philly"), default="", help="with --only locality: this alone")
    parser.add_argument(
        "--ahead", action="store_true", help="with --only locality: submit all jobs before the first arrival"
    )
    parser.add_argument("--jobs", type=int, default=160, help="with --only order, as the following")
    parser.add_argument("--load", type=float, default=1.3, help="GPUs that the jobs need, of those that there are")
    parser.add_argument("--users", type=int, default=1, help="users with gsub, next to two without")
    parser.add_argument("--sigma", type=float, default=1.0, help="error of the predictions, in the logarithm")
    parser.add_argument("--band", type=int, default=0, help="order.band; 0: its default")
    parser.add_argument("--seed", type=int, default=1, help="of the window and of the errors")
    parser.add_argument("--out", type=Path, help="directory for JSON and SVG")
    return parser.parse_args()


def replay_tuning(options: argparse.Namespace, directory: Path) -> int:
    """Replay for CPUs and memory: run the pairs of arms, print and write the figures."""
    scale = options.scale or 300.0
    traces = _traces(options)
    print(f"1 s stands for {scale:g} s of the trace; {settings.line(options.policy, scale)}", flush=True)
    bounds = tuning.bounds(traces)
    pairs = _played(traces, options.repeat if options.series else 1, scale, options, directory)
    by_trace = {name: [pair for label, pair in pairs if label == name] for name in traces}
    rows = [(name, pair[arm]) for name, found in by_trace.items() for pair in found for arm in ARMS]
    print(page.table(rows) + "\n\n" + page.verdict(by_trace, bounds))
    odd = [line for _, one in rows for line in one.odd]
    print(f"\njobs whose own view contradicts the controller's: {len(odd)}", *odd[:10], sep="\n  ")
    if options.out:
        _write(options, scale, by_trace, bounds)
    return 0


def _traces(options: argparse.Namespace) -> dict[str, tuple[SimJob, ...]]:
    traces = {"shipped": tuning.shipped()}
    if options.series:
        from slurmwrap.sim.trace.synergy_loads import STATIC, generate_load

        first, last = (int(part) for part in options.seeds.split("-"))
        traces |= {f"seed {seed}": generate_load(STATIC, seed=seed) for seed in range(first, last + 1)}
    return traces


def _played(
    traces: dict[str, tuple[SimJob, ...]], times: int, scale: float, options: argparse.Namespace, directory: Path
) -> list[tuple[str, Pair]]:
    """Replay every trace `times` times, each time both arms one after the other on one lab, in alternating order."""
    todo = [(name, jobs, turn) for turn in range(times) for name, jobs in traces.items()]
    count = max(1, min(options.labs, len(todo)))
    found: list[tuple[str, Pair]] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        wanted = tuning.wanted(
            directory / f"l{number}", options.base_port + 10 * number, settings.changed(options.policy, scale)
        )
        with lab(wanted) as running:
            tuning.prepare(running)
            while True:
                with lock:
                    if not todo:
                        return
                    name, jobs, turn = todo.pop(0)
                order = ARMS if turn % 2 == 0 else ARMS[::-1]
                pair = {arm: tuning.run_arm(running, arm, jobs, scale) for arm in order}
                with lock:
                    found.append((name, pair))
                    _note(options.out, name, turn, pair)
                    print(f"{name}: {page.ratios([pair])[0]:.3f}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(max_workers=count) as pool:
        for done in [pool.submit(work, number) for number in range(count)]:
            done.result()
    return found


def _plain(one: Arm) -> dict[str, object]:
    more = {name: getattr(one, name) for name in ("submitting_s", "updates_before", "updates", "reaction_s")}
    return {**one.figures.plain(), **more, "odd": list(one.odd)}


def _note(out: Path | None, name: str, turn: int, pair: Pair) -> None:
    """Write each pair with all its runs as soon as it has ended, because a series takes long."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    plain = {arm: {**_plain(one), "spans": one.spans} for arm, one in pair.items()}
    with (out / "pairs.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"trace": name, "turn": turn, "load": os.getloadavg(), **plain}) + "\n")


def _write(
    options: argparse.Namespace, scale: float, by_trace: dict[str, list[Pair]], bounds: dict[str, float]
) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    record = {
        "scale": scale,
        "policy": settings.record(options.policy, scale),
        "bounds": bounds,
        "traces": {
            name: [{arm: _plain(one) for arm, one in pair.items()} for pair in pairs]
            for name, pairs in by_trace.items()
        },
        "ratios": {name: round(page.median_ratio(pairs), 4) for name, pairs in by_trace.items()},
    }
    (options.out / "tuning.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    first = by_trace["shipped"][0]
    title = f"Synergy's 100 jobs on 32 GPUs, 1 s = {scale:g} s of the trace; colour: CPUs of each job"
    (options.out / "tuning.svg").write_text(plot.gantt(first, title, tuning.NODES * tuning.GPUS), encoding="utf-8")
    if len(by_trace) > 1:
        chart = plot.bars(
            {name: page.median_ratio(pairs) for name, pairs in by_trace.items()},
            bounds,
            "Makespan of sbatch by that of gsub, median of the repetitions",
            "right of the line gsub is faster; orange: the no-release bound",
        )
        (options.out / "tuning_series.svg").write_text(chart, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
