"""Measure the pre-run on public training scripts with seeded bugs.

    python -m bench.prerun_rounds mutate CASES ROUND --per-case 3 --seed 1     copy the cases, one bug in each copy
    python -m bench.prerun_rounds truth ROUND --jobs 2 --path ENV/bin          run all plainly, without slurmwrap
    python -m bench.prerun_rounds run ROUND --round 1 --jobs 2 --path ENV/bin --out results.json
    python -m bench.prerun_rounds run ROUND --round 1 --direct ...             the same without Slurm
    python -m bench.prerun_rounds page results.json ROUND                      Markdown for docs/prerun-rounds.md

Late bugs, in lines that first run after the third step (late_stages.py):

    python -m bench.prerun_rounds trace CASES TRACES --path ENV/bin            when each line of an original runs first
    python -m bench.prerun_rounds mutate CASES ROUND --late TRACES --per-case 3 --seed 1
    python -m bench.prerun_rounds truth ROUND --jobs 2 --path ENV/bin
    python -m bench.prerun_rounds late ROUND --keep 2 --out manifest.json      list the confirmed, remove the others
    python -m bench.prerun_rounds run ROUND --round late --rehearse-s 120 --out with.json
    python -m bench.prerun_rounds run ROUND --round late --rehearse-s 0 --out without.json
    python -m bench.prerun_rounds page with.json ROUND --without without.json

A case is a directory with job.sbatch, case.toml (`files`: those that a bug may be in; `counted`: what makes the steps;
`resume`: arguments of job.sbatch that continue from its checkpoint) and the training script with its data. `run`
submits as the calling user on the Slurm that the environment names; that user must be able to read and write ROUND. A
run that was interrupted goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prerun_rounds.cases import (
    ORIGINAL,
    STAGES_FILE,
    Case,
    Variant,
    choose_edits,
    choose_late_edits,
    list_cases,
    list_variants,
    read_json,
    read_sources,
    write_json,
    write_variants,
)
from prerun_rounds.edits import Edit
from prerun_rounds.ground_truth import (
    TIME_LIMIT_S,
    VISIBLE_BEFORE,
    list_late_bugs,
    read_truths,
    run_plainly,
    write_truth,
)
from prerun_rounds.late_stages import find_late_stages, read_line_trace
from prerun_rounds.page import format_page
from prerun_rounds.prerun_runs import RunSettings, run_all, run_in_parallel


def mutate(options: argparse.Namespace) -> int:
    """Write the variants of a round and print the number of mutants by operator."""
    operators: Counter[str] = Counter()
    number = 0
    for case in list_cases(options.cases, options.case):
        if (options.round_dir / case.name).exists() and not options.replace:
            print(f"{case.name}: is there already (--replace writes it anew)", file=sys.stderr)
            continue
        # A generator for each case, so that the bugs of a case do not depend on which other cases there are.
        rng = random.Random(f"{options.seed} {case.name}")
        if options.late:
            edits = plant_late(case, rng, options)
        else:
            edits = choose_edits(case, rng, options.per_case)
            write_variants(case, edits, options.seed, options.round_dir)
        operators.update(edit.operator for edit in edits)
        number += 1
        for at, edit in enumerate(edits, 1):
            print(f"{case.name} m{at} {edit.operator} {edit.file}:{edit.line}")
    print(
        f"{number} cases, {operators.total()} mutants by {len(operators)} operators: {dict(operators)}", file=sys.stderr
    )
    return 0


def plant_late(case: Case, rng: random.Random, options: argparse.Namespace) -> list[Edit]:
    """Write the variants of one case with late bugs, and the stages of its lines; nothing without a trace."""
    plain = read_json(options.late / f"{case.name}.json")
    if not plain.get("sound"):
        print(f"{case.name}: no trace of a sound run ({plain.get('error', 'no file')})", file=sys.stderr)
        return []
    trace = read_line_trace(*(plain["lines"] + [None])[:2], plain["counted_by"])
    planted = Counter(str(one.mutation.get("stage", "")) for one in list_variants(options.round_dir))
    chosen = choose_late_edits(case, trace, rng, options.per_case, planted)
    edits = [edit for _, edit in chosen]
    write_variants(case, edits, options.seed, options.round_dir, [stage for stage, _ in chosen])
    original = options.round_dir / case.name / ORIGINAL
    stages = find_late_stages(trace, read_sources(case))
    write_json(
        original / STAGES_FILE,
        {
            file: {line: (stage, trace.lines.get(file, {}).get(line, (0,))[0]) for line, stage in found.items()}
            for file, found in stages.items()
        },
    )
    # The traced run was a plain run of the original.
    write_json(
        original / "truth.json", {name: value for name, value in plain.items() if name not in ("lines", "sound")}
    )
    return edits


def trace(options: argparse.Namespace) -> int:
    """Run the cases plainly and write TRACES/<case>.json: when each line ran first. Traces that exist are kept."""
    options.traces.mkdir(parents=True, exist_ok=True)
    waiting = [
        case
        for case in list_cases(options.cases, options.case)
        if options.again or not (options.traces / f"{case.name}.json").exists()
    ]

    def trace_one(case: Case) -> None:
        run = run_plainly(
            case.folder,
            counted=case.counted,
            path=options.path,
            limit_s=options.time_limit,
            scratch=options.scratch,
            resume=case.resume,
            record_lines=True,
        )
        sound = not run.exit_code and not run.traceback and run.steps >= VISIBLE_BEFORE
        plain = {"case": case.name, "variant": ORIGINAL, **asdict(run), "sound": sound}
        write_json(options.traces / f"{case.name}.json", plain)
        found = "sound" if sound else f"not sound, exit code {run.exit_code}: {run.error[:100]}"
        print(
            f"{case.name}: {found}, {run.steps} steps ({run.counted_by}), {run.runs} runs, {run.seconds} s",
            file=sys.stderr,
            flush=True,
        )

    run_in_parallel(trace_one, waiting, options.jobs)
    return 0


def list_late(options: argparse.Namespace) -> int:
    """Write the manifest of the confirmed late bugs and print their numbers by stage."""
    bugs = list_late_bugs(options.round_dir)
    if options.keep:
        kept: Counter[str] = Counter()
        chosen = []
        for bug in bugs:
            kept[bug["case"]] += 1
            if kept[bug["case"]] <= options.keep:
                chosen.append(bug)
        bugs = chosen
        names = {(bug["case"], bug["variant"]) for bug in bugs}
        for variant in list(list_variants(options.round_dir)):
            tried = (variant.folder / "truth.json").exists()
            if variant.name != ORIGINAL and tried and (variant.case, variant.name) not in names:
                shutil.rmtree(variant.folder)
    if options.out:
        write_json(options.out, {"late": bugs})
    print(json.dumps({"late": len(bugs), **Counter(bug["stage"] for bug in bugs)}))
    return 0


def find_truth(options: argparse.Namespace) -> int:
    """Run the variants that have no truth.json plainly."""
    variants = list(list_variants(options.round_dir, options.case))
    waiting = [one for one in variants if options.again or not (one.folder / "truth.json").exists()]
    lock, done = threading.Lock(), len(variants) - len(waiting)

    def run_one(variant: Variant) -> None:
        nonlocal done
        found = write_truth(variant, path=options.path, limit_s=options.time_limit, scratch=options.scratch)
        with lock:
            done += 1
            print(
                f"[{done}/{len(variants)}] {variant.case} {variant.name}: exit code {found['exit_code']}, "
                f"{found['steps']} steps ({found['counted_by']}), {found['seconds']} s: "
                f"{(found['last_lines'] or [''])[-1][:100]}",
                file=sys.stderr,
                flush=True,
            )

    run_in_parallel(run_one, waiting, options.jobs)
    truths = read_truths([options.round_dir])
    print(json.dumps(Counter(found["class"] for found in truths.values())))
    return 0


def run(options: argparse.Namespace) -> int:
    """Pre-run the variants."""
    settings = RunSettings(
        path=options.path,
        direct=options.direct,
        timeout_s=options.timeout,
        static_s=options.static_seconds,
        rehearse_s=options.rehearse_s,
        options=tuple(options.gsub_option),
    )
    about = {
        "round": options.round,
        "mode": "direct" if options.direct else "slurm",
        "rehearse_s": options.rehearse_s,
        "began": read_json(options.out).get("began") or time.strftime("%Y-%m-%d %H:%M"),
    }
    run_all(list(list_variants(options.round_dir, options.case)), settings, options.jobs, options.out.resolve(), about)
    return 0


def print_page(options: argparse.Namespace) -> int:
    """Print the Markdown of a round."""
    plain = read_json(options.results)
    if not plain:
        print(f"{options.results}: no results", file=sys.stderr)
        return 1
    truths = read_truths(options.truth)
    bugs = [bug for place in options.truth if place.is_dir() for bug in list_late_bugs(place)]
    stages = {(bug["case"], bug["variant"]): bug["stage"] for bug in bugs}
    without = read_json(options.without).get("results", []) if options.without else []
    print(format_page(plain["results"], truths, str(plain["round"]), options.failing, stages, without), end="")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.prerun_rounds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, work: object, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(work=work)
        return one

    def add_common(one: argparse.ArgumentParser) -> None:
        one.add_argument("--case", action="append", default=[], metavar="NAME", help="only this case (repeatable)")

    def add_path(one: argparse.ArgumentParser) -> None:
        one.add_argument("--path", default="", help="directories in front of PATH, with the python of the jobs")
        one.add_argument("--jobs", type=int, default=2, help="runs at a time")

    def add_plain_runs(one: argparse.ArgumentParser) -> None:
        one.add_argument("--time-limit", type=float, default=TIME_LIMIT_S, help="seconds of one run")
        one.add_argument("--scratch", type=Path, default=None, help="directory for the copies that run")
        one.add_argument("--again", action="store_true", help="also those that were run before")
        add_common(one)
        add_path(one)

    one = add("mutate", mutate, "copy each case, and plant one bug in each further copy")
    one.add_argument("cases", type=Path)
    one.add_argument("round_dir", type=Path)
    one.add_argument("--per-case", type=int, default=3)
    one.add_argument("--seed", type=int, required=True)
    one.add_argument("--replace", action="store_true", help="replace cases that are there already")
    one.add_argument("--late", type=Path, metavar="TRACES", help="late bugs, by the traces in this directory")
    add_common(one)

    one = add("trace", trace, "run each case plainly and record when each of its lines runs first")
    one.add_argument("cases", type=Path)
    one.add_argument("traces", type=Path)
    add_plain_runs(one)

    one = add("late", list_late, "list the confirmed late bugs of a round")
    one.add_argument("round_dir", type=Path)
    one.add_argument("--keep", type=int, default=0, metavar="N", help="remove all but the first N of each case")
    one.add_argument("--out", type=Path, help="manifest to write")

    one = add("truth", find_truth, "run each variant plainly as one process, without Slurm and slurmwrap")
    one.add_argument("round_dir", type=Path)
    add_plain_runs(one)

    one = add("run", run, "pre-run each variant")
    one.add_argument("round_dir", type=Path)
    one.add_argument("--round", required=True, metavar="N", help="number of the round")
    one.add_argument("--out", type=Path, default=Path("results.json"))
    one.add_argument("--direct", action="store_true", help="without Slurm, in processes of this machine")
    one.add_argument("--timeout", type=float, default=1500.0, help="seconds of one pre-run")
    one.add_argument("--static-seconds", type=float, default=0.0, help="time of the static stage (default: as shipped)")
    one.add_argument(
        "--rehearse-s", type=float, default=None, help="prerun.rehearse_s (0: off; default: as configured)"
    )
    one.add_argument(
        "--gsub-option", action="append", default=[], metavar="OPTION", help="further option of gsub (repeatable)"
    )
    add_common(one)
    add_path(one)

    one = add("page", print_page, "print the Markdown of a round")
    one.add_argument("results", type=Path)
    one.add_argument("truth", type=Path, nargs="+", help="truth.json files, or directories with them")
    one.add_argument(
        "--failing", action="append", default=[], metavar="CASE", help="its original fails when sbatch runs it here"
    )
    one.add_argument("--without", type=Path, help="results of the same round without rehearsal, for the seconds")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = make_parser().parse_args(argv)
    return int(options.work(options))


if __name__ == "__main__":
    sys.exit(main())
