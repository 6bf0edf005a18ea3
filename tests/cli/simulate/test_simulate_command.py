"""slurmwrap simulate: text, JSON and plots, invalid options, and lazy imports of large libraries."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from slurmwrap.cli.simulate.simulate_command import ProgressLine, _clear_progress
from slurmwrap.cli.simulate.simulate_output import SimulationRun, format_simulations
from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError, TraceError, UsageError
from slurmwrap.sim.run_simulation import MODES, Simulation, run_simulation
from slurmwrap.sim.sim_job import make_equal_servers
from slurmwrap.sim.trace.sacct_dump import COMMAND
from slurmwrap.sim.trace.synergy_loads import generate_load

Run = Callable[..., Result]
DATA = Path(__file__).parents[2] / "data"
STATIC = str(DATA / "traces" / "synergy_static100.csv")
PROFILES = str(DATA / "profiles" / "synergy_profiles.csv")

# Two GPUs; the second job wants both.
TINY_TRACE = "submit_s,duration_s,gpus\n0,3600,1\n360,1800,2\n720,1080,1\n"
TWO_GPUS = ("--servers", "1", "--gpus", "2")


@pytest.fixture
def tiny_trace(tmp_path: Path) -> str:
    path = tmp_path / "tiny.csv"
    path.write_text(TINY_TRACE)
    return str(path)


def parse_json(result: Result) -> Any:
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def get_error(result: Result) -> tuple[type[BaseException], str, str]:
    error = result.exception
    assert isinstance(error, SlurmwrapError), error
    return type(error), str(error), error.hint


# ------------------------------------------------------------------------------------------- output


def test_json_of_one_run_is_a_flat_object_with_unrounded_numbers(slurmwrap: Run, tiny_trace: str) -> None:
    assert parse_json(slurmwrap("simulate", tiny_trace, *TWO_GPUS, "--json")) == {
        "kind": "slurmwrap.simulation",
        "schema": 1,
        "trace": tiny_trace,
        "seed": None,
        "mode": "rounds",
        "policy": "fifo",
        "mechanism": "proportional",
        "placement": "any",
        "order": None,
        "limits": None,
        "pack": 0.0,
        "preempt": "off",
        "round_s": 0.0,
        "servers": 1,
        "gpus_per_server": 2,
        "cpus_per_server": 24,
        "mem_mib_per_server": 512000,
        "trace_jobs": 3,
        "jobs": 3,
        "makespan_s": 6480.0,
        "mean_jct_s": (3600 + 5040 + 5760) / 3,
        "median_jct_s": 5040.0,
        "p95_jct_s": 5688.0,
        "p99_jct_s": 5745.6,
        "mean_queueing_s": (3240 + 4680) / 3,
        "p99_queueing_s": 4651.2,
        "gpu_utilisation": (3600 + 2 * 1800 + 1080) / (2 * 6480),
        "preemptions": 0,
        "servers_per_multi_gpu_job": None,
        "packed": 0,
        "finish_time_fairness": {},
        "updates": 0,
        "steps": 6,
        "remarks": [],
    }


def test_sharing_and_moving_are_compared_and_what_is_assumed_is_said(slurmwrap: Run, tmp_path: Path) -> None:
    trace = tmp_path / "pair.csv"
    trace.write_text("submit_s,duration_s,gpus,user,gpu_util\n0,3600,1,ada,20\n0,3600,1,ada,30\n0,60,1,eve,\n")
    options = ("--servers", "1", "--gpus", "1", "--mode", "slurm", "--pack", "0,1", "--preempt", "off,fragmentation")
    found = parse_json(slurmwrap("simulate", str(trace), *options, "--json"))
    assert [(run["pack"], run["preempt"], run["packed"]) for run in found["runs"]] == [
        (0.0, "off", 0),
        (0.0, "fragmentation", 0),
        (1.0, "off", 1),
        (1.0, "fragmentation", 1),
    ]
    assert found["remarks"] == [
        "the GPU utilization of 1 jobs is not in the trace: it is drawn with a mean of 52 %",
        "which jobs are moved depends on run times that are expected from the runs that ended before",
    ]
    shown = slurmwrap("simulate", str(trace), *options).stdout
    assert re.search(r"pack +preempt +makespan", shown)
    assert "world slurm: running jobs are moved at a checkpoint, every 1800 s; backfill" in shown
    assert "joined another            1" in slurmwrap("simulate", str(trace), *options[:6], "--pack", "1").stdout


def test_json_of_several_runs_is_a_list_in_the_order_of_the_options(slurmwrap: Run, tiny_trace: str) -> None:
    found = parse_json(
        slurmwrap("simulate", tiny_trace, *TWO_GPUS, "--policy", "srtf,fifo", "--policy", "2d-las", "--json")
    )
    assert [(run["policy"], run["mean_jct_s"]) for run in found["runs"]] == [
        ("srtf", 3120.0),
        ("fifo", 4800.0),
        ("las", (5225 + 5040 + 1080) / 3),
    ]


def test_text_of_one_run_lists_its_metrics_and_describes_its_world(
    slurmwrap: Run, tiny_trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(tiny_trace).parent)
    assert slurmwrap("simulate", "tiny.csv", *TWO_GPUS).stdout == (
        "tiny.csv: 3 jobs, on 1 x (2 GPUs, 24 CPUs, 500 GB)\n"
        "placement any   policy fifo   mechanism proportional\n"
        "world rounds of no length: jobs are preempted at any event, at no cost\n"
        "\n"
        "  makespan            6,480.0 s\n"
        "  mean JCT            4,800.0 s\n"
        "  median JCT          5,040.0 s\n"
        "  p95 JCT             5,688.0 s\n"
        "  p99 JCT             5,745.6 s\n"
        "  mean queueing       2,640.0 s\n"
        "  p99 queueing        4,651.2 s\n"
        "  GPUs in use            63.9 %\n"
        "  preemptions               0\n"
    )


def test_several_worlds_and_placements_are_compared_in_one_table(
    slurmwrap: Run, tiny_trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(tiny_trace).parent)
    done = slurmwrap(
        "simulate", "tiny.csv", *TWO_GPUS, "--mode", "rounds,slurm", "--round", "60", "--placement", "any,skew"
    )
    assert done.stdout.splitlines()[1:] == [
        "policy fifo   mechanism proportional",
        "world rounds: every 60 s all leases end and jobs are placed anew",
        "world slurm: nothing is taken back from a running job; backfill",
        "",
        "  world   placement  makespan  mean JCT      p99   queued  GPU%  x span  x JCT",
        "  rounds  any         5,400.0   3,240.0  5,011.2  1,080.0  76.7   1.000  1.000",
        "  rounds  skew        5,400.0   3,240.0  5,011.2  1,080.0  76.7   1.000  1.000",
        "  slurm   any         6,480.0   4,800.0  5,745.6  2,640.0  63.9   1.000  1.000",
        "  slurm   skew        6,480.0   4,800.0  5,745.6  2,640.0  63.9   1.000  1.000",
        "",
        "Times in seconds. JCT: submission to end; queued: mean without GPUs; x: times shorter than the first",
        "of its world.",
    ]


def test_orders_and_limits_are_compared_in_one_table(slurmwrap: Run, tiny_trace: str) -> None:
    options = (*TWO_GPUS, "--mode", "slurm", "--order", "fifo,shortest,exact", "--limits", "user,predicted")
    done = slurmwrap("simulate", tiny_trace, *options)
    assert done.exit_code == 0, done.exception
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    expected = [[order, limits] for order, limits in product(("fifo", "shortest", "exact"), ("user", "predicted"))]
    assert [row for row in rows if row in expected] == expected
    assert "run times are predicted by user and GPUs" in done.stderr
    assert (
        "order shortest"
        in slurmwrap("simulate", tiny_trace, *TWO_GPUS, "--mode", "slurm", "--order", "shortest").stdout
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--pack", "0.5"), "--pack is of the world slurm"),
        (("--preempt", "both"), "--preempt is of the world slurm"),
        (("--mode", "slurm", "--pack", "0.5,2"), "--pack '2': the share of jobs that may share their GPU, 0 to 1"),
        (("--mode", "slurm", "--pack", "some"), "--pack 'some': the share of jobs"),
        (("--mode", "slurm", "--preempt", "both,none"), "--preempt 'none' is none of off, both"),
        (("--mode", "slurm", "--preempt", "both", "--policy", "srtf"), "--preempt orders the queue by classes"),
        (("--mode", "slurm", "--preempt", "both", "--order", "exact"), "--preempt needs classes, and --order exact"),
        (("--mode", "slurm", "--preempt", "both", "--checkpoint", "0"), "--checkpoint 0: seconds, more than 0"),
        (("--mode", "slurm", "--preempt", "both", "--moving", "1.5"), "--moving 1.5: a share of the GPUs, 0 to 1"),
        (("--mode", "slurm", "--pack", "1", "--gpu-util", "100"), "--gpu-util 100: per cent"),
        (("--order", "shortest"), "--order is of the world slurm"),
        (("--limits", "user"), "--limits is of the world slurm"),
        (("--mode", "slurm", "--order", "shortest", "--policy", "srtf"), "--order and --policy both order the queue"),
        (("--mode", "slurm", "--order", "fastest"), "--order 'fastest' is none of"),
    ],
)
def test_an_order_that_does_not_apply_is_refused(
    slurmwrap: Run, tiny_trace: str, options: tuple[str, ...], words: str
) -> None:
    kind, message, _ = get_error(slurmwrap("simulate", tiny_trace, *TWO_GPUS, *options))
    assert (kind, message.startswith(words)) == (UsageError, True), message


def test_mechanisms_are_compared_with_the_first_mechanism(slurmwrap: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(STATIC).parent)
    done = slurmwrap("simulate", Path(STATIC).name, "--profiles", PROFILES, "--mechanism", "proportional,tune")
    assert done.stdout.splitlines()[1:] == [
        "placement any   policy fifo",
        "world rounds: every 300 s all leases end and jobs are placed anew",
        "",
        "  mechanism     makespan  mean JCT     p99  queued  GPU%  x span  x JCT",
        "  proportional    15.250     5.631  12.940   2.619  61.7   1.000  1.000",
        "  tune            11.000     5.083  10.588   2.438  75.1   1.386  1.108",
        "",
        "Times in hours. JCT: submission to end; queued: mean without GPUs; x: times shorter than the first.",
    ]


def test_several_seeds_are_shown_as_mean_and_spread(slurmwrap: Run) -> None:
    words = ("synergy-static", "--seed", "1-3", "--profiles", PROFILES, "--mechanism", "proportional,tune")
    assert slurmwrap("simulate", *words).stdout.splitlines() == [
        "synergy-static: 100 jobs, 3 seeds (1-3), on 4 x (8 GPUs, 24 CPUs, 500 GB)",
        "placement any   policy fifo",
        "world rounds: every 300 s all leases end and jobs are placed anew",
        "",
        "  mechanism     makespan h       x (least-most)  mean JCT h       x (least-most)",
        "  proportional      14.806  1.000 (1.000-1.000)       5.785  1.000 (1.000-1.000)",
        "  tune              13.306  1.115 (1.053-1.161)       5.222  1.107 (1.089-1.123)",
        "",
        "Means over the seeds. JCT: submission to end; x: times shorter than the first, seed by seed.",
    ]


def test_no_line_is_longer_than_the_terminal() -> None:
    servers = make_equal_servers(4, gpus=8, cpus=24, mem_gb=500)
    runs = []
    for seed, mode, placement in product((1, 2), MODES, ("any", "consolidate")):
        jobs = generate_load("synergy-dynamic", seed=seed, jobs=60, gpu_demand="synthetic")
        simulation = Simulation(jobs=jobs, servers=servers, mode=mode, placement=placement, policy="gittins")
        outcome, summary = run_simulation(simulation)
        runs.append(SimulationRun(trace="a/rather/long/name/of/a/load", seed=seed, simulation=simulation,
                        outcome=outcome, summary=summary))  # fmt: skip
    for columns in (80, 100, 120):
        pages = (
            format_simulations(runs, columns),
            format_simulations([ran for ran in runs if ran.seed == 1], columns),
            format_simulations(runs[:1], columns),
        )
        assert [line for text in pages for line in text.splitlines() if len(line) > columns] == []


def test_a_narrow_terminal_gets_one_spread_table_per_metric() -> None:
    runs = []
    for seed, policy, mode in product((1, 2), ("fifo", "gittins"), MODES):
        jobs = generate_load("synergy-dynamic", seed=seed, jobs=3, jobs_per_hour=9)
        servers = make_equal_servers(1, gpus=1, cpus=3, mem_gb=100)
        simulation = Simulation(jobs=jobs, servers=servers, mode=mode, policy=policy, las_thresholds=())
        outcome, summary = run_simulation(simulation)
        runs.append(SimulationRun(trace="t", seed=seed, simulation=simulation, outcome=outcome, summary=summary))
    heads = [line for line in format_simulations(runs, 80).splitlines() if line.startswith("  world")]
    assert heads == [
        "  world   policy   makespan h       x (least-most)",
        "  world   policy   mean JCT h       x (least-most)",
    ]


def test_the_same_command_prints_identical_output_twice(slurmwrap: Run) -> None:
    words = ("simulate", "synergy-dynamic", "--jobs", "40", "--seed", "7", "--gpu-demand", "synthetic", "--json")
    assert slurmwrap(*words).stdout == slurmwrap(*words).stdout


def test_measure_restricts_the_metrics_to_the_given_jobs(slurmwrap: Run, tiny_trace: str) -> None:
    found = parse_json(slurmwrap("simulate", tiny_trace, *TWO_GPUS, "--measure", "0-1", "--json"))
    assert (found["jobs"], found["trace_jobs"], found["mean_jct_s"]) == (2, 3, 4320.0)


def test_csv_profiles_and_exported_json_profiles_give_the_same_result(slurmwrap: Run, tmp_path: Path) -> None:
    slurmwrap("profile", "import", PROFILES)
    (tmp_path / "own.json").write_text(slurmwrap("profile", "export").stdout)
    words = ("simulate", STATIC, "--mechanism", "graded", "--json", "--profiles")
    assert parse_json(slurmwrap(*words, str(tmp_path / "own.json"))) == parse_json(slurmwrap(*words, PROFILES))


def test_a_remark_counts_the_jobs_without_a_profile(slurmwrap: Run, tmp_path: Path) -> None:
    trace = tmp_path / "some.csv"
    trace.write_text("submit_s,duration_s,gpus,model\n0,60,1,res18\n1,60,1,llama\n2,60,1,\n")
    remark = "2 of 3 jobs have no profile (models: llama): they run at the speed of their share"
    done = slurmwrap("simulate", str(trace), "--profiles", PROFILES, "--mechanism", "tune", "--json")
    assert parse_json(done)["remarks"] == [remark]
    assert remark in done.stderr


def test_a_remark_names_options_that_have_no_effect(slurmwrap: Run, tiny_trace: str) -> None:
    words = (
        "simulate",
        tiny_trace,
        *TWO_GPUS,
        "--jobs",
        "2",
        "--split",
        "1,1,1",
        "--mode",
        "slurm",
        "--policy",
        "fifo,las",
    )
    assert parse_json(slurmwrap(*words, "--json"))["remarks"] == [
        "--jobs, --split: for generated loads only; all jobs of the file are replayed unchanged",
        "las in the world slurm is fifo: jobs that wait have not run yet",
    ]


def test_a_remark_names_placements_that_the_mechanism_ignores(slurmwrap: Run, tmp_path: Path) -> None:
    trace = tmp_path / "some.csv"
    trace.write_text("submit_s,duration_s,gpus,model\n0,60,2,res18\n")
    words = ("simulate", str(trace), "--profiles", PROFILES, "--mechanism", "tune,graded", "--json")
    done = slurmwrap(*words, "--placement", "consolidate,skew")
    assert parse_json(done)["remarks"] == [
        "--placement skew changes nothing in rounds where jobs have profiles: the mechanism places them",
        "--placement consolidate changes nothing in rounds here: graded always takes the fewest servers",
    ]


def test_a_remark_says_where_graded_changes_the_job_order(slurmwrap: Run) -> None:
    words = ("simulate", "synergy-dynamic", "--jobs", "5", "--profiles", PROFILES, "--policy", "fifo,srtf", "--json")
    remark = "graded with srtf: a job that determines the makespan goes before its turn"
    assert parse_json(slurmwrap(*words, "--mechanism", "tune,graded"))["remarks"] == [remark]
    assert parse_json(slurmwrap(*words, "--mechanism", "tune"))["remarks"] == []


def test_the_help_has_the_same_sacct_command_as_the_error_messages(slurmwrap: Run) -> None:
    help_text = slurmwrap("simulate", "--help").stdout
    command = (
        help_text[help_text.index("SLURM_TIME_FORMAT") : help_text.index("> month.psv")].replace("\\\n", " ").split()
    )
    before, _, fields = COMMAND.partition(" -o ")
    assert " ".join(command).replace(" -o ", ",").split(",", 1) == [before, fields]


def test_failures_prints_a_table_and_the_assumptions(slurmwrap: Run) -> None:
    done = slurmwrap("simulate", "synergy-static", "--failures", "published", "--seed", "1-2")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["synergy-static", "no queue is simulated: GPU time only"]
    assert [line for line in lines if line.startswith(("plain, blind retries", "all three"))] != []
    assert max(len(line) for line in lines if line.startswith("- ")) <= 100


def test_json_of_failures_is_the_whole_study(slurmwrap: Run) -> None:
    found = parse_json(slurmwrap("simulate", "synergy-static", "--failures", "published", "--seed", "1-2", "--json"))
    assert sorted(found) == ["failures", "kind", "remarks", "schema", "trace"]
    assert (found["failures"]["jobs"], found["failures"]["seeds"]) == (100, [1, 2])


# ------------------------------------------------------------------------------------------- invalid input


def test_an_invalid_option_is_refused_with_its_name_and_value(slurmwrap: Run, tiny_trace: str) -> None:
    wanted = {
        ("--policy", "sjf"): "--policy 'sjf' is none of fifo, srtf, srsf, las, gittins, ftf, themis, drf",
        (
            "--mechanism",
            "fair",
        ): "--mechanism 'fair' is none of proportional, greedy, tune, graded, opt, opt-placed, tetris",
        ("--placement", "yarn"): "--placement 'yarn' is none of any, consolidate, skew",
        ("--mode", "real"): "--mode 'real' is none of rounds, slurm",
        ("--mechanism", "tune"): "--mechanism tune needs --profiles: it must know how fast jobs run",
        ("--mode", "slurm", "--mechanism", "opt"): "--mechanism opt needs leases that end: --mode rounds",
        ("--round", "-1"): "--round -1: seconds, 0 or more",
        ("--measure", "5"): "--measure '5': give the first and the last number, as 4000-4999",
        ("--measure", "9-12"): "--measure 9-12: there are only the jobs 0-2",
        ("--las-thresholds", "9,3"): "--las-thresholds '9,3': rising GPU-seconds, as 3250,7200; '' for none",
        ("--failures", "drawn"): "--failures 'drawn' is none of published, dump",
        ("--failures", "dump", "--plot", "p.svg"): "--failures prints a table: there is nothing to --plot",
        ("--promote", "0"): "--promote 0: a number above 0",
        ("--servers", "0"): "--servers must be at least 1, not 0",
        ("--mem-gb", "0"): "--mem-gb must be at least 1, not 0.0",
        ("--mem-gb", "nan"): "--mem-gb must be at least 1, not nan",
        ("--mem-gb", "inf"): "--mem-gb must be at most 1,000,000, not inf",
        ("--servers", "1000000000"): "--servers must be at most 1,000,000, not 1000000000",
    }
    found = {words: get_error(slurmwrap("simulate", tiny_trace, *TWO_GPUS, *words))[:2] for words in wanted}
    assert found == {words: (UsageError, message) for words, message in wanted.items()}


def test_an_invalid_option_of_a_generated_load_is_refused(slurmwrap: Run) -> None:
    wanted = {
        ("--seed", "ten"): "--seed 'ten': a number, a range as 1-10, or several with commas",
        ("--seed", "1-100000"): "--seed '1-100000': more than 1000 seeds",
        ("--split", "60,40"): "--split '60,40': give three shares (image, language, speech), as 60,30,10",
        ("--split", "0,0,0"): "--split '0,0,0': shares are 0 or more, and not all of them 0",
        ("--jobs", "0"): "--jobs and --jobs-per-hour must be above 0, --jobs at most 5,000,000",
        ("--run-times", "long"): "--run-times 'long' is none of small, gavel",
        ("--gpu-demand", "philly"): "--gpu-demand 'philly' is none of single, synthetic",
    }
    found = {words: get_error(slurmwrap("simulate", "synergy-static", *words))[:2] for words in wanted}
    assert found == {words: (UsageError, message) for words, message in wanted.items()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty directory."""
    path = tmp_path / "out"
    path.mkdir()
    return path


def test_a_malformed_trace_line_is_named_and_no_plot_is_written(slurmwrap: Run, tmp_path: Path, out: Path) -> None:
    (tmp_path / "bad.csv").write_text(TINY_TRACE + "900,-1,1\n")
    kind, error_text, _ = get_error(slurmwrap("simulate", str(tmp_path / "bad.csv"), "--plot", str(out / "new.svg")))
    assert kind is TraceError
    assert re.match(r".*bad\.csv:5: ", error_text)
    assert list(out.iterdir()) == []


def test_a_job_larger_than_the_cluster_is_named_with_its_trace_line(slurmwrap: Run, tiny_trace: str) -> None:
    kind, error_text, _ = get_error(slurmwrap("simulate", tiny_trace, "--servers", "1", "--gpus", "1"))
    assert kind is TraceError
    assert re.search(r"tiny\.csv:3: job 1 asks for 2 GPUs.* 1$", error_text)


def test_a_missing_trace_is_refused_with_the_accepted_kinds_of_trace(slurmwrap: Run) -> None:
    kind, _, hint = get_error(slurmwrap("simulate", "synergy"))
    assert (kind, hint) == (TraceError, "a CSV, what sacct -P printed, synergy-static or synergy-dynamic")


def test_a_malformed_profile_file_is_a_trace_error(slurmwrap: Run, tiny_trace: str) -> None:
    kind, error_text, _ = get_error(slurmwrap("simulate", tiny_trace, "--profiles", tiny_trace))
    assert (kind, error_text) == (TraceError, f"{tiny_trace}: line 1: there is no column 'model'")


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        ("plot.pdf", "a file ending in .svg or .png is wanted"),
        ("nowhere/plot.svg", "there is no directory"),
    ],
)
def test_an_invalid_plot_path_is_refused_before_the_simulation(
    slurmwrap: Run, tmp_path: Path, plot: str, message: str
) -> None:
    kind, error_text, _ = get_error(slurmwrap("simulate", "no such trace", "--plot", str(tmp_path / plot)))
    assert kind is UsageError
    assert message in error_text


# ------------------------------------------------------------------------------------------- plots, progress, imports


def test_a_plot_is_written_without_leftover_files(slurmwrap: Run, tiny_trace: str, out: Path) -> None:
    path = out / "plot.png"
    done = slurmwrap("simulate", tiny_trace, *TWO_GPUS, "--policy", "fifo,srtf", "--plot", str(path))
    assert done.exit_code == 0, done.exception
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(out.iterdir()) == [path]


def test_a_trace_of_jobs_with_zero_duration_can_be_plotted(slurmwrap: Run, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("submit_s,duration_s,gpus\n0,0,1\n")
    assert slurmwrap("simulate", str(tmp_path / "none.csv"), "--plot", str(tmp_path / "p.svg")).exit_code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_plot_directory_is_refused_before_the_simulation(slurmwrap: Run, out: Path) -> None:
    out.chmod(0o500)
    _, error_text, _ = get_error(slurmwrap("simulate", "no such trace", "--plot", str(out / "p.svg")))
    assert error_text.endswith("is not writable")


def test_a_plot_names_its_world_and_is_reproducible(slurmwrap: Run, tiny_trace: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    for path in (one, two):
        slurmwrap("simulate", tiny_trace, *TWO_GPUS, "--round", "60", "--plot", str(path))
    assert one.read_bytes().startswith(b"<?xml")
    assert "3 jobs on 2 GPUs. World: rounds of 60 s (leases end)" in one.read_text()
    assert one.read_bytes() == two.read_bytes()


def test_progress_is_shown_after_one_second_and_redrawn_at_a_limited_rate() -> None:
    times = iter([0.0, 0.9, 1.0, 1.05, 1.2])
    stream = io.StringIO()
    watch = ProgressLine(Console("simulate", stream, tty=True), "jobs have ended", lambda: next(times))
    watch.label = "rounds, fifo, tune"
    for ended in (1, 2, 3, 4):
        watch(ended, 1000)
    assert stream.getvalue().split("\r\033[K") == [
        "",
        "rounds, fifo, tune: 2 of 1,000 jobs have ended",
        "rounds, fifo, tune: 4 of 1,000 jobs have ended",
    ]


def test_ctrl_c_clears_the_progress_line() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), _clear_progress(Console("simulate", stream, tty=True)):
        stream.write("\r\033[Krounds: 2 of 1,000")
        raise KeyboardInterrupt
    assert stream.getvalue().endswith("\r\033[K")


# One process checks both: which modules are loaded before a command runs, and the message for a missing library.
RUN_WITHOUT_LIBRARIES = """
import sys
from slurmwrap.cli.slurmwrap import main
print(*(name for name in sys.modules if name.startswith(("highspy", "matplotlib", "slurmwrap.sim"))))
for missing in ("numpy", "highspy"):
    sys.modules[missing] = None
    try:
        main()
    except SystemExit as ended:
        print(missing, ended.code)
    del sys.modules[missing]
"""


def test_the_simulator_is_imported_lazily_and_a_missing_extra_is_named(tiny_trace: str) -> None:
    done = subprocess.run(
        [sys.executable, "-Wignore", "-c", RUN_WITHOUT_LIBRARIES, "simulate", tiny_trace],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["", "numpy 1", "highspy 1"]
    assert done.stderr.splitlines() == [
        "slurmwrap: error: the simulator needs numpy, which is not installed",
        "slurmwrap: pip install 'slurmwrap[sim]'",
        "slurmwrap: error: the simulator needs highspy, which is not installed",
        "slurmwrap: pip install 'slurmwrap[sim]'",
    ]
