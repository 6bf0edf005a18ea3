"""The command `slurmwrap simulate`: replay a load on a simulated cluster; print text or JSON, or draw a plot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slurmwrap.console import Console, columns
from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.json_output import format_json_document

if TYPE_CHECKING:
    from slurmwrap.cli.simulate.simulate_options import PlannedRun, SimulateOptions
    from slurmwrap.cli.simulate.simulate_output import SimulationRun

_PROGRAM = "slurmwrap simulate"
# Seconds before the first line of progress, and between two updates.
_QUIET_S = 1.0
_EVERY_S = 0.1


def simulate(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE", help="A CSV or CSV.gz, a dump of sacct -P, or synergy-static or synergy-dynamic."
        ),
    ],
    servers: Annotated[int, typer.Option(help="Number of servers.")] = 4,
    gpus: Annotated[int, typer.Option(help="GPUs of each server.")] = 8,
    cpus: Annotated[int, typer.Option(help="CPUs of each server.")] = 24,
    mem_gb: Annotated[float, typer.Option(help="Memory of each server.")] = 500.0,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="Order of the queue: fifo, srtf, srsf, las, gittins, ftf, themis, drf.  [default: fifo]",
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="How CPUs and memory are divided: proportional, greedy, tune (Synergy's), graded "
            "(production's), opt (an upper bound), opt-placed, tetris.  [default: proportional]",
        ),
    ] = None,
    placement: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", help="How jobs are placed: any, consolidate, skew.  [default: any]"),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(metavar="WORLD,…", help="rounds: leases end; slurm: no preemption.  [default: rounds]"),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="--mode slurm: order of pending jobs by predicted run times, as the rule order does it: shortest, "
            "gittins, las, srtf. For comparison: fifo, exact (true run times), fewest-gpus.  [default: --policy]",
        ),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="--mode slurm: time limits that backfill assumes: trace (else 24 h), user (the trace's, else 1.2 to "
            "10 times the run time), predicted (what the rule limit makes of these).  [default: trace]",
        ),
    ] = None,
    pack: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE,…",
            help="--mode slurm: share of jobs (0 to 1) whose users let them share their GPU, drawn job by job. A "
            "waiting job of one GPU joins a running one of the same user if both will run well.  [default: 0]",
        ),
    ] = None,
    gpu_util: Annotated[
        float,
        typer.Option(
            metavar="PERCENT", help="--pack: mean GPU utilization of jobs of which the trace does not say it; drawn."
        ),
    ] = 52.0,
    preempt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="--mode slurm: which running jobs leave their GPUs at a checkpoint, as the rule move does it: "
            "feedback (for jobs that have had less), fragmentation (to free nodes), both.  [default: off]",
        ),
    ] = None,
    checkpoint_s: Annotated[
        float,
        typer.Option("--checkpoint", metavar="S", help="--preempt: a job writes a checkpoint so often."),
    ] = 1800.0,
    moving: Annotated[
        float,
        typer.Option("--moving", metavar="SHARE", help="--preempt: share of the GPUs that may be moved at a time."),
    ] = 0.05,
    round_s: Annotated[
        float | None,
        typer.Option(
            "--round",
            metavar="S",
            help="Length of a round in seconds; 0: at every event.  [default: 300 with --profiles, else 0]",
        ),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Speeds of the models: a CSV, or output of slurmwrap profile export."),
    ] = None,
    las_thresholds: Annotated[
        str | None,
        typer.Option(
            metavar="GPU-S,…",
            help="GPU-seconds at which las and gittins demote a job; '' for none.  [default: 3250,7200]",
        ),
    ] = None,
    promote: Annotated[
        float | None,
        typer.Option(metavar="K", help="las and gittins: promote a job that waited K times as long as it ran."),
    ] = None,
    measure: Annotated[
        str, typer.Option(metavar="A-B", help="Measure the JCT of these jobs only, counted from 0; end with them.")
    ] = "",
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="N|A-B", help="Seeds of a generated load or of --failures; several: show the spread.  [default: 1]"
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Jobs of a generated load.  [default: 100]")] = None,
    jobs_per_hour: Annotated[
        float | None, typer.Option(metavar="X", help="Arrival rate of synergy-dynamic.  [default: 30]")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="I,L,S",
            help="Shares of image, language and speech models in a generated load.  [default: 60,30,10; for "
            "synergy-dynamic 30,60,10]",
        ),
    ] = None,
    run_times: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Run times of a generated load: small (32 min to 8 h), or gavel (up to 7 days).  [default: small]",
        ),
    ] = None,
    gpu_demand: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="GPUs per job of a generated load: single, or synthetic (1 to 8 GPUs).  [default: single]",
        ),
    ] = None,
    failures: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Study instead what failures cost, and what pre-run, retry and node exclusion save. published: at "
            "Philly's rates; dump: the failures in sacct's dump.  [default seeds: 1-10]",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw JCT, queueing delay and load into FILE.svg or FILE.png."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in seconds with all digits.")] = False,
) -> None:
    """Replay a load on a cluster of your choice.

    Every figure is from one of two worlds: "rounds", where leases end and jobs
    are placed again as in the papers, or "slurm", where running jobs keep their
    resources. --policy, --mechanism, --placement and --mode take several names
    with commas, or "all"; the runs are compared with the first one.

    \b
    Experiments of two papers:
      slurmwrap simulate static100.csv --profiles profiles.csv \\
          --mechanism proportional,tune,greedy,graded
      slurmwrap simulate philly480.csv --servers 15 --gpus 4 \\
          --policy fifo,las,srsf
    \b
    What the order by predicted run times changes on Slurm:
      slurmwrap simulate philly480.csv --servers 15 --gpus 4 --mode slurm \\
          --order fifo,shortest,exact
    \b
    What sharing GPUs, and moving running jobs, change on Slurm:
      slurmwrap simulate philly480.csv --servers 15 --gpus 4 --mode slurm \\
          --pack 0,0.5 --preempt off,both
    \b
    Ten random loads instead of one:
      slurmwrap simulate synergy-dynamic --policy srtf --seed 1-10 \\
          --mechanism proportional,tune --profiles profiles.csv
    \b
    Your own cluster and jobs:
      SLURM_TIME_FORMAT=%s sacct -a -D -X -P -S now-30days \\
          -o JobID,User,Partition,State,Submit,Eligible,Start,End,ElapsedRaw \\
          -o TimelimitRaw,ReqTRES,AllocTRES,NNodes,NodeList,ExitCode,JobName \\
          > month.psv
      slurmwrap simulate month.psv --mode slurm --servers 20 --cpus 64 \\
          --plot month.svg
    """
    _require_sim_extra()
    from slurmwrap.cli.simulate.simulate_options import SimulateOptions

    names = {"policy": policy or ["fifo"], "mechanism": mechanism or ["proportional"], "mode": mode or ["rounds"]}
    asked = SimulateOptions(
        trace=trace, servers=servers, gpus=gpus, cpus=cpus, mem_gb=mem_gb, **names, placement=placement or ["any"],
        profiles=profiles, round_s=round_s, las_thresholds=las_thresholds, promote=promote, measure=measure, seed=seed,
        jobs=jobs, jobs_per_hour=jobs_per_hour, split=split, gpu_demand=gpu_demand, run_times=run_times,
        order=order or [], limits=limits or [], pack=pack or [], gpu_util=gpu_util, preempt=preempt or [],
        checkpoint_s=checkpoint_s, moving=moving,
    )  # fmt: skip
    if failures is None:
        _run_simulations(asked, plot, as_json)
    elif plot is not None:
        raise UsageError("--failures prints a table: there is nothing to --plot")
    else:
        _run_failure_study(asked, failures, as_json)


def _run_simulations(asked: SimulateOptions, plot: Path | None, as_json: bool) -> None:
    from slurmwrap.cli.simulate import simulate_output
    from slurmwrap.cli.simulate.simulate_options import make_simulation_plan

    console = Console.of_terminal(_PROGRAM)
    if plot is not None:
        simulate_output.check_plot_file(plot)
    plan = make_simulation_plan(asked)
    for remark in plan.remarks:
        console.say(remark, "yellow")
    runs = _play_plan(asked.trace, plan.runs, console)
    if plot is not None:
        simulate_output.draw_simulations(runs, plot)
        console.say(f"drawn: {plot}")
    if as_json:
        found = [simulate_output.simulation_to_json_dict(ran) for ran in runs]
        remarks = {"remarks": list(plan.remarks)}
        whole = {**found[0], **remarks} if len(found) == 1 else {"runs": found, **remarks}
        typer.echo(format_json_document("simulation" if len(found) == 1 else "simulations", whole))
    else:
        typer.echo(simulate_output.format_simulations(runs, _get_width()))


def _run_failure_study(asked: SimulateOptions, kind: str, as_json: bool) -> None:
    from slurmwrap.cli.simulate import simulate_failures
    from slurmwrap.cli.simulate.simulate_options import make_simulation_plan, parse_seeds

    console = Console.of_terminal(_PROGRAM)
    simulate_failures.check_study_kind(kind)
    seeds = parse_seeds(asked.seed or "1-10")
    plan = make_simulation_plan(replace(asked, seed="1"))
    for remark in plan.remarks:
        console.say(remark, "yellow")
    watch = ProgressLine(console, "worlds have been played")
    watch.label = f"failures, {kind}"
    load = plan.runs[0].simulation
    with _clear_progress(console):
        found = simulate_failures.run_study(kind, load.jobs, load.servers, seeds, watch)
    if as_json:
        typer.echo(
            format_json_document(
                "failure_study", simulate_failures.study_to_json_dict(asked.trace, found, plan.remarks)
            )
        )
    else:
        typer.echo(simulate_failures.format_study(asked.trace, found, _get_width()))


def _play_plan(trace: str, plan: tuple[PlannedRun, ...], console: Console) -> list[SimulationRun]:
    from slurmwrap.cli.simulate.simulate_output import SimulationRun
    from slurmwrap.sim.run_simulation import run_simulation as play

    runs = []
    watch = ProgressLine(console, "jobs have ended")
    with _clear_progress(console):
        for number, one in enumerate(plan, start=1):
            asked = one.simulation
            label = f"run {number} of {len(plan)}, " if len(plan) > 1 else ""
            watch.label = f"{label}{asked.mode}, {asked.policy}, {asked.mechanism}"
            outcome, summary = play(asked, watch)
            runs.append(SimulationRun(trace=trace, seed=one.seed, simulation=asked, outcome=outcome, summary=summary))
    return runs


@contextmanager
def _clear_progress(console: Console) -> Iterator[None]:
    """Remove the progress line at the end, also after an error or Ctrl-C."""
    try:
        yield
    finally:
        console.progress_done()


class ProgressLine:
    """A progress line that is redrawn on a terminal, after the first second. The line begins with `label`."""

    def __init__(self, console: Console, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.label = ""
        self._console, self._what, self._clock = console, what, clock
        self._next = clock() + _QUIET_S

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + _EVERY_S
            self._console.redraw(f"{self.label}: {done:,} of {total:,} {self._what}"[: columns()])


def _require_sim_extra() -> None:
    """Raise UsageError if the optional extra `sim` is not installed."""
    for name in ("numpy", "highspy"):
        try:
            import_module(name)
        except ImportError as error:
            hint = "pip install 'slurmwrap[sim]'"
            raise UsageError(f"the simulator needs {name}, which is not installed", hint=hint, exit_code=1) from error


def _get_width() -> int:
    try:
        return max(80, min(120, os.get_terminal_size(1).columns))
    except OSError:
        return 100
