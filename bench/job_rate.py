"""Many short jobs on labs with and without slurmwrap, the same stream in turn. Runs as root.

    bench/job_rate.py                      100 jobs/s for 20 s, two rounds of all arms
    bench/job_rate.py --minutes 10         the full one, a round each
    bench/job_rate.py --rate 30            another rate

Each second one array of RATE tasks that end at once is submitted as an ordinary user. Slurm itself may start fewer in a
second, so jobs queue up in each arm. The arms:

    bare         no hook, no reconciler
    true         EpilogSlurmctld=/bin/true: what Slurm itself takes to start such a program
    hook         slurmwrap's EpilogSlurmctld, no reconciler
    controller   EpilogSlurmctld and reconciler: what runs on a controller
    site         Prolog and Epilog too. On a lab they share the cores of the controller, which they do not on a cluster

Printed are, as figures and as ratios to `bare`: jobs accepted and completed a second, from slurmctld's sdiag the mean
scheduling cycle, the mean time of a submission and the longest agent queue, and how long sdiag's own answer took. With
a reconciler also the backlog: most files in the spools, how long after the last job the database had all runs, and how
many it lacks after two minutes. The labs share one machine: only the one that is measured has jobs.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay.labs import USER, account, parent, slurmwrap_lab

from slurmwrap.lab import daemons, machine
from slurmwrap.lab.lab_directories import LabDirectories, exports
from slurmwrap.lab.lab_state import read_state, write_state

# More jobs than Slurm's default of 10,000 may be known, and ended ones are forgotten sooner.
_SETTINGS = "\nMaxJobCount=200000\nMinJobAge=60\nDebugFlags=NO_CONF_HASH\n"
_NODES, _CPUS = 4, 16
_PATIENCE_S, _MISSING_S = 3600.0, 120.0
ARMS: dict[str, tuple[str, ...]] = {
    "bare": ("--no-hooks", "--no-reconcile"),
    "true": ("--no-reconcile",),
    "hook": ("--no-reconcile",),
    "controller": (),
    "site": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFigures:
    """What one round of one arm showed. Times in seconds, of sdiag in microseconds."""

    accepted_per_s: float
    completed_per_s: float
    cycle_us: float
    submit_us: float
    agents: int
    answer_s: float
    spool_files: int = 0
    lag_s: float = 0.0
    missing: int = 0


def main() -> int:
    """Run the arms in turn and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="jobs submitted in a second")
    parser.add_argument("--minutes", type=float, default=1 / 3)
    parser.add_argument("--rounds", type=int, default=0, help="of all arms; 2, with more than 2 minutes 1")
    parser.add_argument("--arms", default="bare,controller,site", help=f"all: {','.join(ARMS)}")
    parser.add_argument("--base-port", type=int, default=23000)
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.minutes > 2 else 2)
    if unknown := set(options.arms.split(",")) - set(ARMS):
        parser.error(f"there is no arm {', '.join(sorted(unknown))}")
    found: dict[str, list[RateFigures]] = {arm: [] for arm in dict.fromkeys(("bare", *options.arms.split(",")))}
    with account(), parent() as folder, ExitStack() as stack:
        labs = {
            arm: stack.enter_context(_lab(folder / arm, options.base_port + 20 * place, arm, *ARMS[arm]))
            for place, arm in enumerate(found)
        }
        for number in range(rounds):
            arms = list(labs.items())
            for name, lab in arms if number % 2 == 0 else arms[::-1]:
                found[name].append(_measure(lab, options.rate, options.minutes * 60))
                print(f"round {number + 1}, {name}: {found[name][-1]}", flush=True)
    _print_figures(found)
    return 0


@contextmanager
def _lab(directory: Path, port: int, arm: str, *more: str) -> Iterator[LabDirectories]:
    slurmwrap_lab(["up", "--dir", str(directory), "--base-port", str(port), "--nodes", str(_NODES),
                   "--cpus", str(_CPUS), *more])  # fmt: skip
    layout = LabDirectories(directory)
    try:
        settings = layout.slurm_conf.read_text() + _SETTINGS
        if arm != "site":
            settings = re.sub(r"(?m)^(Prolog|Epilog)=.*\n", "", settings)
        if arm == "true":
            settings = re.sub(r"(?m)^EpilogSlurmctld=.*$", "EpilogSlurmctld=/bin/true", settings)
        layout.slurm_conf.write_text(settings)
        pid = int((layout.controller / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        _wait(lambda: not daemons.started_at(pid), "slurmctld ends")
        argv = [machine.program("slurmctld"), "-D", "-f", str(layout.slurm_conf)]
        daemon, process = daemons.start("slurmctld", argv, layout)
        process.returncode = 0  # it ends with its lab
        state = read_state(layout)
        assert state is not None
        others = tuple(one for one in state.daemons if one.name != "slurmctld")
        write_state(layout, replaced(state, daemons=(*others, daemon)))
        _wait(lambda: set(_run(layout, "sinfo", "-h", "-o", "%T").split()) == {"idle"}, "the nodes are idle")
        _run(layout, "scontrol", "reconfigure")
        yield layout
    finally:
        slurmwrap_lab(["down", "--dir", str(directory)])


def _measure(lab: LabDirectories, rate: int, seconds: float) -> RateFigures:
    """Submit the stream, wait until no job is left, and return the figures."""
    _run(lab, "sdiag", "--reset")
    since, began, sent, agents, spool, answers = time.time(), time.monotonic(), 0, 0, 0, list[float]()
    submit = ["sbatch", "--quiet", f"--array=1-{rate}", "-n1", "--mem=1", "--output=/dev/null", "--wrap=true"]
    while (at := time.monotonic() - began) < seconds:
        _run(lab, *submit, user=USER)
        sent += rate
        if sent // rate % 5 == 0:
            agents, spool = max(agents, _read_diag(lab, answers)[0]), max(spool, _count_spool_files(lab))
        time.sleep(max(0.0, sent / rate - (time.monotonic() - began)))
    accepted = sent / max(at, time.monotonic() - began)
    while _run(lab, "squeue", "-h", "-t", "PD,R,CG,CF", "-o", "%i"):
        agents, spool = max(agents, _read_diag(lab, answers)[0]), max(spool, _count_spool_files(lab))
        if time.monotonic() - began > seconds + _PATIENCE_S:
            raise SystemExit("the jobs do not end")
        time.sleep(1.0)
    ended = time.monotonic()
    took = ended - began
    _, cycle, submitted = _read_diag(lab, answers)
    figures = RateFigures(
        accepted_per_s=accepted, completed_per_s=sent / took, cycle_us=cycle, submit_us=submitted, agents=agents,
        answer_s=statistics.median(answers), spool_files=spool,
    )  # fmt: skip
    state = read_state(lab)
    if state is None or all(one.name != "reconcile" for one in state.daemons):
        return figures
    _wait(lambda: _count_spool_files(lab) == 0 and _count_open_runs(lab) == 0, "the reconciler has read all", 1200)
    until = time.monotonic() + _MISSING_S
    while (missing := sent - _count_runs(lab, since)) > 0 and time.monotonic() < until:
        time.sleep(1.0)
    return replaced(figures, lag_s=time.monotonic() - ended, missing=missing)


def _read_diag(lab: LabDirectories, answers: list[float]) -> tuple[int, float, float]:
    """Return the agent queue, the mean main cycle and the mean time of a submission."""
    began = time.monotonic()
    text = _run(lab, "sdiag")
    answers.append(time.monotonic() - began)
    main_part = text.partition("Main schedule statistics")[2]
    wanted = ((r"Agent queue size:\s+(\d+)", text), (r"Mean cycle:\s+(\d+)", main_part),
              (r"REQUEST_SUBMIT_BATCH_JOB .*?ave_time:(\d+)", text))  # fmt: skip
    found = [re.search(pattern, where) for pattern, where in wanted]
    agents, cycle, submitted = (int(one[1]) if one else 0 for one in found)
    return agents, float(cycle), float(submitted)


def _count_spool_files(lab: LabDirectories) -> int:
    places = (lab.spool, lab.state / "controller")
    return sum(
        entry.name.endswith((".obs", ".env")) for place in places if place.exists() for entry in os.scandir(place)
    )


def _count_open_runs(lab: LabDirectories) -> int:
    return _count(lab, "SELECT count(*) FROM attempts WHERE reconciled = 0")


def _count_runs(lab: LabDirectories, since: float) -> int:
    return _count(lab, f"SELECT count(*) FROM attempts WHERE submit_time >= {int(since)}")


def _count(lab: LabDirectories, sql: str) -> int:
    with closing(sqlite3.connect(f"file:{lab.state}/site.db?mode=ro", uri=True)) as connection:
        return int(connection.execute(sql).fetchone()[0])


def _run(lab: LabDirectories, *argv: str, user: str = "") -> str:
    environ = {"PATH": daemons.PATH, "LC_ALL": "C", **exports(lab)}
    found = pwd.getpwnam(user) if user else None
    ids = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": list[int]()} if found else {}
    done = subprocess.run(argv, env=environ, cwd="/", capture_output=True, text=True, check=False, timeout=120, **ids)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{argv[0]}: {done.stderr}")
    return str(done.stdout)


def _wait(condition: object, what: str, patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(0.5)


def _print_figures(found: dict[str, list[RateFigures]]) -> None:
    """Print the medians of all arms and their ratios to the bare one."""
    rows = (
        ("accepted jobs/s", "accepted_per_s"), ("completed jobs/s", "completed_per_s"),
        ("mean main cycle, us", "cycle_us"), ("mean submission, us", "submit_us"), ("longest agent queue", "agents"),
        ("answer of sdiag, s", "answer_s"),
    )  # fmt: skip
    print(f"{'':22}" + "".join(f"{arm:>12}{'':8}" for arm in found))
    for title, name in rows:
        values = {arm: statistics.median(getattr(one, name) for one in ones) for arm, ones in found.items()}
        cells = [f"{value:12.3f}{value / values['bare'] if values['bare'] else 0.0:8.2f}" for value in values.values()]
        print(f"{title:22}" + "".join(cells))
    for arm in [arm for arm in found if not ARMS[arm]]:
        for one in found[arm]:
            backlog = f"{one.spool_files} files at most, all read {one.lag_s:.0f} s after the last job"
            print(f"{arm}: {backlog}; {one.missing} runs missing")


if __name__ == "__main__":
    sys.exit(main())
